"""The simulator's arithmetic and the kernels that run on the CPU host give the same bits, in every rounding mode."""

import importlib.util

import numpy as np
import pytest

from lab.sim.rounding.arithmetic import Arithmetic, all_reduce, narrow
from lab.sim.rounding.convert import to_bf16
from lab.sim.rounding.drift import METRICS, Path, Stream, fused, measure
from lab.sim.rounding.modes import NanRule, RoundMode

WORLD = 3
SIZE = 4099  # no multiple of a vector or of the ranks
MODES = ("RNE", "RTZ", "RNA", "RU", "RD", "RAZ", "RTO")

if importlib.util.find_spec("lab.kernels.host"):
    from lab.kernels.host import Collective, HostRanks
    from lab.kernels.staging import Layout

    LAYOUT = Layout(WORLD, max_bytes=1 << 15, one_shot_bytes=1 << 15, packet_bytes=1 << 15)

    def adversarial(dtype: str, seed: int) -> np.ndarray:
        """(WORLD, SIZE) bits: ties of the sum, cancellation, subnormals, overflow, infinities, NaN, zeros."""
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((WORLD, SIZE)) * np.exp2(rng.integers(-8, 9, (WORLD, SIZE)))
        tie = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}[dtype]
        large = {"bf16": 3.3895e38, "fp16": 65504.0, "fp32": 3.4028e38}[dtype]
        small = {"bf16": 9.2e-41, "fp16": 6e-8, "fp32": 1.4e-45}[dtype]
        special = np.array(
            [0.0, -0.0, 1.0, -1.0, tie, -tie, 3 * tie, large, -large, small, -small, np.inf, -np.inf, np.nan]
        )
        chosen = rng.random((WORLD, SIZE)) < 0.3
        values[chosen] = rng.choice(special, chosen.sum())
        columns = rng.random(SIZE) < 0.2  # whole columns of specials: ties and cancellations among them
        values[:, columns] = rng.choice(special, (WORLD, columns.sum()))
        with np.errstate(over="ignore"):
            return narrow(values.astype(np.float32), dtype)

    def run(ranks: "HostRanks", algorithm: str, dtype: str, inputs: np.ndarray, seed: int = 0) -> np.ndarray:
        rows = [row.copy() for row in inputs]
        outputs = [np.zeros_like(row) for row in rows]
        ended = ranks.run([Collective(algorithm, dtype, rows, outputs, 2, 32)], seed=seed)
        assert ended.outcome == "finished"
        return np.stack(outputs)

    @pytest.mark.parametrize("mode", MODES)
    def test_every_kernel_gives_the_bits_of_the_arithmetic(mode, tmp_path_factory):
        ranks = HostRanks(LAYOUT, rounding=mode)
        for dtype in ("bf16", "fp16", "fp32") if mode == "RNE" else ("bf16", "fp16"):
            for seed, algorithm in enumerate(("one_shot", "two_shot", "low_latency")):
                inputs = adversarial(dtype, seed)
                model = Arithmetic("two_shot" if algorithm == "two_shot" else "one_shot", mode=RoundMode.parse(mode))
                right = all_reduce(inputs, dtype, model)
                got = run(ranks, algorithm, dtype, inputs, seed)
                assert np.array_equal(got, right), (algorithm, dtype, np.count_nonzero(got != right))

    @pytest.mark.parametrize("mode", MODES)
    def test_a_drift_run_on_the_kernels_gives_the_bits_of_the_simulator(mode):
        ranks = HostRanks(LAYOUT, rounding=mode)
        add = RoundMode.parse(mode)

        def kernel(inputs, residual):
            summed = run(ranks, "one_shot", "bf16", inputs)[0]
            wide = (np.stack([residual, summed]).astype(np.uint32) << 16).view(np.float32)
            return narrow(wide[0] + wide[1], "bf16", add)

        stream = Stream(world=WORLD, hidden=500, tokens=1, steps=6)
        mine, theirs = measure(stream, [fused(mode), Path("kernel", step=kernel)], seeds=[0], every_step=True)
        for name in METRICS:
            assert np.array_equal(getattr(mine, name), getattr(theirs, name))

    def test_the_comparison_is_not_blind():
        """Kernels that round to nearest even do not pass for truncating ones."""
        inputs = adversarial("bf16", 0)
        got = run(HostRanks(LAYOUT, rounding="RNE"), "one_shot", "bf16", inputs)
        assert not np.array_equal(got, all_reduce(inputs, "bf16", Arithmetic(mode=RoundMode.TowardZero)))
        assert not np.array_equal(got, all_reduce(inputs, "bf16", Arithmetic(mode=RoundMode.TiesToAway)))

    def philox(index: np.ndarray, epoch: int, key: int) -> np.ndarray:
        """Philox2x32-10 (Salmon et al. 2011), from its definition."""
        low, high, key = index.astype(np.uint64), np.full(index.shape, epoch, np.uint64), np.uint64(key)
        word = np.uint64(0xFFFFFFFF)
        for _ in range(10):
            product = np.uint64(0xD256D193) * low
            low, high = (product >> np.uint64(32)) ^ key ^ high, product & word
            key = (key + np.uint64(0x9E3779B9)) & word
        return low

    @pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "low_latency"])
    def test_stochastic_kernels_round_by_their_random_bits(algorithm):
        """bf16 uses the top 16 of the kernel's 32 random bits: SR(16) of the fp32 sum with these integers."""
        inputs = adversarial("bf16", 5)
        ranks = HostRanks(LAYOUT, rounding="SR")
        rows = [row.copy() for row in inputs]
        outputs = [np.zeros_like(row) for row in rows]
        ranks.run([Collective(algorithm, "bf16", rows, outputs, 2, 32)], seed=1, rounding_seed=77)
        random = philox(np.arange(SIZE), 1, 77) >> np.uint64(16)

        def rounder(values):
            return to_bf16(values, "SR", random_bits=16, random=random, nan=NanRule.CANONICAL)

        right = all_reduce(inputs, "bf16", rounder=rounder)
        assert np.array_equal(np.stack(outputs), right)
