"""The kernels' one rounding, in every mode, against neighbours found independently and compared in float64."""

import shutil

import numpy as np
import pytest

from lab.kernels.build import HIP, ROUNDINGS
from lab.kernels.host import Collective, HostRanks
from lab.kernels.reference import BITS, widen
from lab.kernels.tests.scenario import layout, make

LARGEST = {"fp16": 65504.0, "bf16": float(np.uint32(0x7F7F0000).view(np.float32))}
BEYOND = {"fp16": 65536.0, "bf16": 2.0**128}  # what infinity stands for when distances are compared


def values() -> np.ndarray:
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 1 << 32, 6000, dtype=np.uint32).view(np.float32)
    near_fp16 = np.ldexp(rng.uniform(1, 2, 6000), rng.integers(-28, 18, 6000)).astype(np.float32)
    ties = (rng.integers(0, 0x7F80, 2000).astype(np.uint32) << 16 | 0x8000).view(np.float32)
    half_ties = (np.arange(0, 2048, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0**-24)
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, 65504, 65519, 65520, 65535, 65536, 1e38, 3.4e38, 2.0**-149], np.float32
    )
    found = np.concatenate([patterns, near_fp16, ties, half_ties, edges])
    found = found[~np.isnan(found)]
    return np.concatenate([found, -found])


def neighbours(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Bits of the nearest value toward zero and of the nearest one away from it; equal where x is exact."""
    if dtype == "bf16":
        bits = x.view(np.uint32)
        inner = (bits >> 16).astype(np.uint16)
        exact = (bits & 0xFFFF) == 0
    else:
        with np.errstate(over="ignore"):
            nearest = x.astype(np.float16)
        too_far = np.abs(nearest.astype(np.float64)) > np.abs(x.astype(np.float64))
        inner = np.where(too_far, nearest.view(np.uint16) - 1, nearest.view(np.uint16)).astype(np.uint16)
        exact = inner.view(np.float16).astype(np.float64) == x
    return inner, np.where(exact, inner, inner + 1).astype(np.uint16)


def expected(x: np.ndarray, dtype: str, mode: str) -> np.ndarray:
    inner, outer = neighbours(x, dtype)
    size = np.abs(x.astype(np.float64))

    def distance(bits):
        with np.errstate(invalid="ignore"):
            value = np.abs(widen(bits, dtype).astype(np.float64))
            return np.abs(np.where(np.isinf(value), BEYOND[dtype], value) - size)

    near, far = distance(inner), distance(outer)
    negative = np.signbit(x)
    outward = {
        "RNE": (far < near) | ((far == near) & (inner & 1 == 1)),
        "RTZ": np.zeros(x.shape, bool),
        "RNA": far <= near,
        "RU": ~negative,
        "RD": negative,
        "RAZ": np.ones(x.shape, bool),
        "RTO": inner & 1 == 0,
    }[mode]
    return np.where(outward & ~np.isinf(x), outer, inner).astype(np.uint16)


def rounded(x: np.ndarray, dtype: str, mode: str, algorithm: str = "one_shot", seed: int = 0) -> np.ndarray:
    """What the kernel makes of an fp32 sum x: terms that a 16-bit type holds, whose fp32 sum is x."""
    ranks = HostRanks(layout(2, 1 << 20), rounding=mode)
    outputs = [np.zeros(x.size, BITS[dtype]) for _ in range(2)]
    high, low = split(x, dtype)
    ranks.run([Collective(algorithm, dtype, [high, low], outputs, 2, 32)], seed=0, rounding_seed=seed)
    assert (outputs[0] == outputs[1]).all()
    return outputs[0]


def split(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    inner, _ = neighbours(x, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        rest = x.astype(np.float64) - widen(inner, dtype).astype(np.float64)
        low, _ = neighbours(rest.astype(np.float32), dtype)
    return inner, low


def sums(dtype: str) -> np.ndarray:
    """fp32 values that are sums of two values of the type."""
    high, low = split(values(), dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        total = widen(high, dtype) + widen(low, dtype)
    keep = ~np.isnan(total)
    return total[keep]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("mode", [mode for mode in ROUNDINGS if mode != "SR"])
def test_every_mode(mode, dtype):
    x = sums(dtype)
    high, low = split(x, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        keep = widen(high, dtype) + widen(low, dtype) == x
    x = x[keep]
    assert x.size > 10_000
    inner, outer = neighbours(x, dtype)
    assert (inner != outer).mean() > 0.3, "most sums must need a rounding, or the test says little"
    got, want = rounded(x, dtype, mode), expected(x, dtype, mode)
    bad = np.flatnonzero((got != want) & ~((x == 0) & (got << 1 == want << 1)))
    assert bad.size == 0, [(x[i], hex(got[i]), hex(want[i])) for i in bad[:5]]


CONVERTS = """
#define LAB_HAVE_PACKED_BF16 1
namespace lab {
/// Nearest even by the bits, with no regard to a NaN: some become infinite or zero.
LAB_DEVICE u32 convert_bf16_rne(float low, float high) {
    const auto one = [](u32 bits) { return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16 & 0xffffu; };
    return one(bits_of(low)) | one(bits_of(high)) << 16;
}
} // namespace lab
"""


@pytest.mark.parametrize("guarded", [True, False])
def test_a_packed_conversion_may_make_of_a_nan_what_it_likes(guarded, tmp_path, cache):
    """What v_cvt_pk_bf16_f32 leaves to rounding.hpp: without that, this one's NaNs would show."""
    shutil.copytree(HIP, tmp_path / "hip")
    path = tmp_path / "hip" / "target_host.hpp"
    path.write_text(path.read_text() + CONVERTS)
    if not guarded:
        path = tmp_path / "hip" / "rounding.hpp"
        text = path.read_text()
        assert "return with_canonical_nans(convert_bf16_rne(low, high), low, high);" in text
        path.write_text(
            text.replace(
                "return with_canonical_nans(convert_bf16_rne(low, high), low, high);",
                "return convert_bf16_rne(low, high);",
            )
        )
    ranks = HostRanks(layout(4), source=tmp_path / "hip", cache=cache)
    wrong = [line for seed in range(6) for line in make(seed, 4, 12, dtypes=["bf16"]).play(ranks, seed)[1]]
    assert bool(wrong) != guarded


def test_stochastic_rounding_is_fair_and_its_bits_depend_on_seed_and_place_only():
    x = np.full(20_000, 1.0 + 2.0**-7 * 0.25, np.float32)  # a quarter of the way between two bf16 values
    first = rounded(x, "bf16", "SR", seed=5)
    assert set(first.tolist()) == {0x3F80, 0x3F81}
    assert abs((first == 0x3F81).mean() - 0.25) < 0.015
    for algorithm in ("two_shot", "low_latency"):
        assert (rounded(x, "bf16", "SR", algorithm, seed=5) == first).all()
    assert (rounded(x, "bf16", "SR", seed=6) != first).mean() > 0.2
