"""The proof over all 2^32 inputs, and that it is not blind."""

import time

import numpy as np
import pytest
from numba import njit

from lab.sim.rounding import loops, proof, spec
from lab.sim.rounding.convert import RoundMode, _staging, lift_and_half
from lab.sim.rounding.modes import NanRule

ONE_BINADE = [(0x3F800000, 0x40000000)]
#: Where every planted fault shows: a binade, what is small and large in fp16, a negative binade, and NaN.
WHERE_FAULTS_SHOW = [
    *ONE_BINADE,
    (0x33000000, 0x33100000),
    (0x47700000, 0x47900000),
    (0xBF800000, 0xC0000000),
    *proof.nan_spans(),
]


def test_every_deterministic_mode_on_all_inputs():
    proofs = proof.prove_modes()
    assert len(proofs) == 2 * 7 + 3
    assert [line for line in proofs if line.mismatches or line.inputs != 2**32] == []


@pytest.mark.parametrize(("fmt", "mode"), list(loops.RULES), ids=str)
def test_blocks_and_streaming_give_the_proved_codes(fmt, mode):
    # the proof has the loop write to its output at once; blocks and non-temporal stores must change no code
    table = proof.pieces(proof.FORMATS[fmt], mode if mode in proof.DETERMINISTIC_MODES else RoundMode.TiesToEven)
    words = np.concatenate([np.arange(0, 2**32, 1021, dtype=np.uint32), table.starts, table.starts - np.uint32(1)])
    how = tuple(np.uint32(n) for n in (0, 1, 2, 0x1FFF, 0)) if mode.is_stochastic else loops.NO_RANDOM
    run = loops.loop(fmt, mode)
    expected = np.empty(words.size, np.uint16)
    run(words, expected, np.empty(0, np.uint16), 0, False, *how)
    for dtype, shift in ((np.uint16, 0), (np.uint32, 16)):
        for stream in (loops.STREAM_BLOCK, loops.STREAM_BLOCK_RANDOM, None):
            codes = np.empty(words.size, dtype)
            if stream is None:
                run(words, codes, np.empty(loops.BLOCK, dtype), 0, False, *how)
            else:
                run(words, codes, *_staging(codes, stream), *how)
            assert np.array_equal(codes >> dtype(shift), expected)


def test_every_nan_rule_on_all_nan_inputs():
    proofs = proof.prove_nan_rules()
    assert {line.name for line in proofs} >= {"bf16 RTZ NaN unguarded", "bf16 RNE NaN all_ones"}
    assert [line for line in proofs if line.mismatches] == []


@pytest.mark.parametrize(("fmt", "mode", "bits"), proof.stochastic_cases(), ids=str)
def test_stochastic_counts_over_all_pairs(fmt, mode, bits):
    line = proof.prove_stochastic(fmt, mode, bits)
    assert line.mismatches == 0
    cut = 16 if fmt == "bf16" else 13
    # plain: the part of a step that k bits cannot see, half of it on average. Centred: half of the last cut-off bit.
    blind = -(2.0**-bits) / 2 + 2.0**-cut / 2 if mode is RoundMode.Stochastic else 2.0**-cut / 2 * (bits < cut)
    assert line.mean_bias == pytest.approx(blind, abs=1e-12)


@pytest.mark.parametrize("lower", [0x0080, 0x3F81, 0x7F7F])
def test_stochastic_counts_at_other_codes(lower):
    assert proof.prove_stochastic("bf16", RoundMode.Stochastic, 8, lower=lower).mismatches == 0


def test_the_count_is_that_of_the_specification():
    for mode in (RoundMode.Stochastic, RoundMode.StochasticCentred):
        for bits in (1, 3, 6):
            for rest in (0, 1, 2, 1023, 4095, 4096, 5000, 8191):
                fraction = spec.Fraction(rest, 2**13)
                ups = sum(
                    spec.stochastic_takes_upper(fraction, n, bits, centred=mode is RoundMode.StochasticCentred)
                    for n in range(2**bits)
                )
                assert ups == proof.stochastic_ups(np.array([rest]), 13, bits, mode)[0]


def test_a_wrong_stochastic_rule_is_seen():
    words = (0x3F800000 + np.arange(2**16)).astype(np.uint32)
    ups = np.empty(2**16, np.int64)
    lift, half = lift_and_half("bf16", RoundMode.Stochastic, 8)
    right = proof.stochastic_ups(np.arange(2**16), 16, 8, RoundMode.Stochastic)
    for wrong in ((lift - np.uint32(1), half), (lift, np.uint32(1))):
        loops.stochastic_counter("bf16")(words, np.full(2**16, 0x3F80, np.uint32), 8, *wrong, ups)
        assert np.count_nonzero(ups != right) > 0


def test_planted_faults_are_caught():
    lines = {line.name: line for line in proof.catch_mutants(spans=WHERE_FAULTS_SHOW)}
    assert len(lines) == 10
    for name, line in lines.items():
        assert line.mismatches > 0, f"the proof does not see: {name}"
        word, got, right = line.first
        assert got != right and spec.round_bits(word, *_claim(name)) == right


def _claim(name):
    return next((proof.FORMATS[m.fmt], m.mode) for m in proof.mutants.MUTANTS if m.name == name)


@pytest.mark.slow
def test_planted_faults_on_all_inputs():
    counts = {line.name: line.mismatches for line in proof.catch_mutants()}
    assert counts["bf16 RNE, bias 0x7ffe"] == 65_280
    assert counts["bf16 RNE, no tie bit (half away)"] == 32_640  # one input in 131,586
    assert counts["bf16 RNE, truncates"] == 2_139_062_400


def test_a_random_check_would_miss_the_missing_tie_bit():
    from lab.sim.rounding.convert import to_bf16

    x = np.random.default_rng(0).standard_normal(16_384, np.float32)
    assert np.array_equal(to_bf16(x, "RNE"), to_bf16(x, "RNA"))


@pytest.mark.parametrize("fmt", [spec.BF16, spec.FP16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("mode", list(proof.DETERMINISTIC_MODES), ids=lambda mode: mode.value)
def test_pieces_are_the_specification(fmt, mode):
    pieces = proof.pieces(fmt, mode)
    assert pieces.starts[0] == 0 and (np.diff(pieces.starts.astype(np.int64)) > 0).all()
    rng = np.random.default_rng(0)
    chosen = rng.choice(pieces.starts.size, 60, replace=False)
    words = np.concatenate([pieces.starts[chosen], pieces.starts[chosen] - np.uint32(1)])
    words = np.concatenate([words, rng.integers(0, 2**32, 60, dtype=np.uint32)])
    assert [spec.round_bits(int(word), fmt, mode) for word in words] == pieces.at(words).tolist()


def test_pieces_of_the_double_rounding_and_nan_rules():
    words = np.random.default_rng(1).integers(0x33000000, 0x47900000, 100).astype(np.uint32)
    via = RoundMode.TiesToEvenViaFp16
    assert [spec.round_bits(int(w), spec.BF16, via) for w in words] == proof.pieces(spec.BF16, via).at(words).tolist()
    nans = np.random.default_rng(2).integers(0x7F800001, 0x80000000, 100).astype(np.uint32)
    for rule in NanRule:
        table = proof.pieces(spec.BF16, RoundMode.TiesToEven, rule)
        assert [spec.round_nan(int(w), spec.BF16, rule) for w in nans] == table.at(nans).tolist()


@njit
def _widen_portably(codes, out):
    for i in range(codes.size):
        out[i] = loops._from_half_portable(codes[i])


def test_hardware_and_portable_fp16_agree_on_widening():
    codes = np.arange(65536, dtype=np.uint32)
    wide = np.array([spec.widen(int(code), spec.FP16) for code in codes], np.uint32)
    portable = np.empty_like(wide)
    _widen_portably(codes, portable)
    assert np.array_equal(portable, wide)
    assert np.array_equal(codes.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32), wide)


def test_nan_inputs_that_become_numbers_without_a_guard():
    assert proof.lost_nans(RoundMode.TowardZero) == 131_070  # OPUS code 2
    assert proof.lost_nans(RoundMode.TiesToEven) == 131_072


@pytest.mark.parametrize("json", [False, True])
def test_ctrl_c_ends_a_proof_at_once_and_keeps_what_was_finished(monkeypatch, capsys, json):
    from lab.cli import main

    def interrupted(*, threads, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(proof, "catch_mutants", interrupted)
    monkeypatch.setattr(proof, "prove_modes", lambda *, threads, progress: proof.prove_nan_rules(threads=threads))
    monkeypatch.setattr(proof, "stochastic_cases", lambda: [])
    assert main(["rounding", "prove", *(["--json"] if json else [])]) == 130
    shown = capsys.readouterr()
    assert "4 of 5 parts are finished; of the rest nothing is proved" in shown.err
    assert "NaN unguarded" in shown.out and "proved," not in shown.out
    assert not json or '"proved": false' in shown.out


def test_threads_of_a_proof_end_soon_after_ctrl_c():
    """The conversion is slow: without a look at the clock between cases it would run for a minute."""
    looked = []

    def slow(words, codes):
        looked.append(time.perf_counter())
        if len(looked) == 3:
            raise KeyboardInterrupt
        time.sleep(0.05)

    cases = [(f"case {k}", slow, proof.LowHalves()) for k in range(40)]
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        proof.compare(cases, spans=[(0, 20 * proof.CHUNK)], threads=2)
    assert time.perf_counter() - begin < 5


def test_progress_is_a_share_that_reaches_one():
    seen = []
    proof.prove_modes(spans=[(0x3F800000, 0x3F800000 + 4 * proof.CHUNK)], progress=seen.append)
    assert max(seen) == 1 and min(seen) > 0
