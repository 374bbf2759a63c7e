"""The public functions against the specification and other libraries; names, carriers, random bits, errors."""

import subprocess
import sys

import numpy as np
import pytest

from lab.errors import LabError, UnknownNameError
from lab.sim.rounding import convert as r
from lab.sim.rounding import loops, spec
from lab.sim.rounding.convert import NanRule, RoundMode, to_bf16, to_fp16

FORMATS = {"bf16": (spec.BF16, to_bf16), "fp16": (spec.FP16, to_fp16)}
CASES = [(fmt, mode) for fmt in FORMATS for mode in RoundMode if fmt == "bf16" or not mode.bf16_only]


def adversarial(count: int, seed: int = 1) -> np.ndarray:
    """fp32 values on, beside and between the numbers of both formats, at both ends of the range, and NaN."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, count, dtype=np.uint32)
    fifth = count // 5
    words[:fifth] = rng.integers(0x32FFF000, 0x47900000, fifth)  # the range of fp16
    words[fifth : 2 * fifth] &= np.uint32(0xFFFF8000)  # ties and exact numbers of bf16
    words[2 * fifth : 3 * fifth] = rng.integers(0x32FFF000, 0x47900000, fifth, dtype=np.uint32) & np.uint32(0xFFFFF000)
    words[3 * fifth : 4 * fifth] += rng.integers(0, 3, fifth, dtype=np.uint32) - np.uint32(1)
    ends = [0, 1, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x7FC00000]
    ends += [0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x33000000, 0x33000001, 0x00008000, 0x0000FFFF]
    ends = np.array(ends, np.uint32)
    return np.concatenate([ends, ends | np.uint32(0x80000000), words]).view(np.float32)


@pytest.mark.parametrize(("fmt", "mode"), CASES, ids=[f"{fmt} {mode.value}" for fmt, mode in CASES])
def test_agrees_with_the_specification(fmt, mode):
    target, convert = FORMATS[fmt]
    x = adversarial(150)
    words = x.view(np.uint32)
    widths = (1, 5, r.max_random_bits(fmt, mode)) if mode.is_stochastic else (None,)
    for bits in widths:
        how = {"random_bits": bits, "seed": 7} if bits else {}
        got = convert(x, mode, **how).view(np.uint16)
        random = r.random_words(x.size, 7) >> np.uint32(32 - (bits or 32))
        for i, word in enumerate(words):
            right = spec.round_bits(int(word), target, mode, random=int(random[i]), random_bits=bits or 16)
            assert got[i] == right, f"0x{word:08x}: 0x{got[i]:04x}, 0x{right:04x} is due"


@pytest.mark.parametrize("nan", NanRule)
def test_nan_rules(nan):
    x = adversarial(0)[np.isnan(adversarial(0))]
    got = to_bf16(x, "RNE", nan=nan)
    assert [spec.round_nan(int(word), spec.BF16, nan) for word in x.view(np.uint32)] == got.tolist()


def test_values_that_everybody_knows():
    x = np.array([1.5, 3.14159274, 65504, 65520, -1e-8, 1e38, 3.4e38, np.inf], np.float32)
    assert to_bf16(x).tolist() == [0x3FC0, 0x4049, 0x4780, 0x4780, 0xB22C, 0x7E96, 0x7F80, 0x7F80]
    assert to_bf16(x, "RTZ").tolist() == [0x3FC0, 0x4049, 0x477F, 0x477F, 0xB22B, 0x7E96, 0x7F7F, 0x7F80]
    assert to_fp16(x).tolist() == [1.5, 3.140625, 65504, np.inf, -0.0, np.inf, np.inf, np.inf]
    assert to_fp16(x, "RTZ").tolist() == [1.5, 3.140625, 65504, 65504, -0.0, 65504, 65504, np.inf]
    assert to_fp16(x, "RD").tolist() == [1.5, 3.140625, 65504, 65504, -(2.0**-24), 65504, 65504, np.inf]


# ---- names


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("RNE", RoundMode.TiesToEven),
        ("rtz", RoundMode.TowardZero),
        ("TowardPositive", RoundMode.TowardPositive),
        ("roundTiesToAway", RoundMode.TiesToAway),
        ("RTA", RoundMode.TiesToAway),
        (RoundMode.ToOdd, RoundMode.ToOdd),
    ],
)
def test_modes_by_name(name, mode):
    assert RoundMode.parse(name) is mode


def test_gfloat_names():
    import gfloat

    shared = {"TowardZero", "TowardNegative", "TowardPositive", "TiesToEven", "TiesToAway", "Stochastic"}
    assert shared <= {mode.name for mode in gfloat.RoundMode} & {mode.name for mode in RoundMode}


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean .*TiesToEven"):
        RoundMode.parse("TiesToEvn")
    with pytest.raises(UnknownNameError, match=r"aiter-[0-4]"):
        r.conversion("aiter-7")


def test_library_codes():
    x = np.array([1.5, 1.00390625 + 2**-9, np.nan], np.float32)
    assert r.round_with("aiter-0", x).tolist() == [0x3FC0, 0x3F81, 0x7FC0]
    assert r.round_with("aiter-1", x)[0] == 0x0000  # the low half
    assert r.round_with("opus-2", x).tolist() == [0x3FC0, 0x3F80, 0x7FC0]
    assert r.round_with("aiter-3", x)[2] == 0x7FFF
    assert r.round_with("ck-1", np.array([0x7F800001], np.uint32).view(np.float32)) == [0x7F81]
    with pytest.raises(LabError, match="no branch"):
        r.round_with("aiter-4", x)


# ---- other libraries


def chosen_words() -> np.ndarray:
    """All 65,536 upper halves with the lower halves at which anything changes, without NaN."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    words = ((np.arange(65536, dtype=np.uint32) << 16)[:, None] | low).reshape(-1)
    return words[(words & 0x7FFFFFFF) <= 0x7F800000]


def test_nearest_even_agrees_with_torch_and_ml_dtypes():
    import ml_dtypes
    import torch

    x = chosen_words().view(np.float32)
    mine = to_bf16(x)
    assert np.array_equal(torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy(), mine)
    assert np.array_equal(x.astype(ml_dtypes.bfloat16).view(np.uint16), mine)
    with np.errstate(over="ignore"):
        assert np.array_equal(x.astype(np.float16).view(np.uint16), to_fp16(x).view(np.uint16))


@pytest.mark.slow
def test_nearest_even_agrees_with_torch_and_ml_dtypes_everywhere():
    import ml_dtypes
    import torch

    chunk = 1 << 24
    for start in range(0, 1 << 32, chunk):
        words = np.arange(start, start + chunk, dtype=np.int64).astype(np.uint32)
        x = words.view(np.float32)
        mine, numbers = to_bf16(x), (words & 0x7FFFFFFF) <= 0x7F800000
        theirs = torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy()
        assert np.array_equal(theirs[numbers], mine[numbers])
        with np.errstate(invalid="ignore"):
            assert np.array_equal(x.astype(ml_dtypes.bfloat16).view(np.uint16)[numbers], mine[numbers])


@pytest.mark.parametrize("mode", ["TowardZero", "TowardNegative", "TowardPositive", "TiesToEven", "TiesToAway"])
def test_agrees_with_gfloat(mode):
    import gfloat
    from gfloat.formats import format_info_bfloat16, format_info_binary16

    x = adversarial(3000, seed=2)
    x = x[~np.isnan(x)]
    their_mode = gfloat.RoundMode[mode]
    for convert, info in ((to_bf16, format_info_bfloat16), (to_fp16, format_info_binary16)):
        mine = np.zeros_like(x)
        convert(x, mode, out=mine)
        theirs = gfloat.round_ndarray(info, x.astype(np.float64), their_mode)
        assert np.array_equal(mine, theirs.astype(np.float32))


@pytest.mark.parametrize(("mode", "theirs"), [("SR", "StochasticFastest"), ("SRC", "StochasticFast")])
def test_stochastic_agrees_with_gfloat(mode, theirs):
    import gfloat
    from gfloat.formats import format_info_bfloat16

    x = adversarial(3000, seed=3)
    x = x[np.isfinite(x) & (np.abs(x) < 3e38)]
    for bits in (1, 4, 8):
        random = np.random.default_rng(bits).integers(0, 2**bits, x.size)
        mine = to_bf16(x, mode, random_bits=bits, random=random, out=np.zeros_like(x))
        right = gfloat.round_ndarray(
            format_info_bfloat16, x.astype(np.float64), gfloat.RoundMode[theirs], srbits=random, srnumbits=bits
        )
        assert np.array_equal(mine, right.astype(np.float32))


# ---- carriers


def test_every_carrier_holds_the_same_codes():
    import ml_dtypes
    import torch

    x = adversarial(1000).reshape(2, -1)
    codes = to_bf16(x)
    assert codes.dtype == np.uint16 and codes.shape == x.shape
    for out in (np.zeros(x.shape, np.int16), np.zeros(x.shape, ml_dtypes.bfloat16)):
        assert to_bf16(x, out=out) is out
        assert np.array_equal(out.view(np.uint16), codes)
    wide = to_bf16(x, out=np.zeros(x.shape, np.float32))
    assert np.array_equal(wide.view(np.uint32), codes.astype(np.uint32) << 16)
    assert np.array_equal(r.bf16_to_fp32(codes).view(np.uint32), wide.view(np.uint32))
    tensor = torch.from_numpy(x)
    for out in (None, torch.zeros(x.shape, dtype=torch.bfloat16)):
        got = to_bf16(tensor, out=out)
        assert got.dtype is torch.bfloat16 and (out is None or got is out)
        assert np.array_equal(got.view(torch.uint16).numpy(), codes)
    got = to_bf16(tensor, out=torch.zeros(x.shape))
    assert np.array_equal(got.numpy().view(np.uint32), wide.view(np.uint32))

    half = to_fp16(x)
    assert half.dtype == np.float16
    assert np.array_equal(to_fp16(x, out=np.zeros(x.shape, np.uint16)), half.view(np.uint16))
    assert np.array_equal(to_fp16(tensor).view(torch.uint16).numpy(), half.view(np.uint16))
    assert np.array_equal(to_fp16(x, out=np.zeros(x.shape, np.float32)), half.astype(np.float32), equal_nan=True)


def test_input_is_read_and_output_written_in_place():
    import torch

    x = torch.randn(64, requires_grad=True)
    out = torch.zeros(64, dtype=torch.bfloat16)
    where = out.data_ptr()
    to_bf16(x, out=out)
    assert out.data_ptr() == where and out.count_nonzero() > 0
    mine = adversarial(300)
    expected = to_bf16(mine)
    assert to_bf16(mine, out=mine) is mine  # fp32 values over their own input
    assert np.array_equal(mine.view(np.uint32) >> 16, expected)


def test_layouts():
    x = adversarial(2000)[:1024].reshape(32, 32)
    codes = to_bf16(x)
    assert np.array_equal(to_bf16(x.T), codes.T)
    assert np.array_equal(to_bf16(x[::3, 1::2]), codes[::3, 1::2])
    out = np.zeros((64, 64), np.uint16)
    to_bf16(x, out=out[::2, ::2])
    assert np.array_equal(out[::2, ::2], codes) and not out[1::2].any()
    assert to_bf16(np.array(1.5, np.float32)).shape == () and to_bf16(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_overlapping_output_is_right():
    memory = adversarial(3000)[:2048].copy()
    x = memory[:1024]
    expected = to_bf16(x.copy())
    ahead = memory.view(np.uint16)[1:1025]  # overwrites words that are still to be read
    to_bf16(x, out=ahead)
    assert np.array_equal(ahead, expected)


@pytest.mark.parametrize("skew", [0, 1, 31])
def test_streaming_stores_change_nothing(skew, monkeypatch):
    size = loops.STREAM_BLOCK_RANDOM * 9 + 77
    x = np.tile(adversarial(1000), 8)[:size]
    expected = [to_bf16(x, "RTO"), to_bf16(x, "SR", seed=1)]
    monkeypatch.setattr(r, "STREAM_BYTES", 0)
    for mode, codes in zip(({"mode": "RTO"}, {"mode": "SR", "seed": 1}), expected, strict=True):
        memory = np.full(size + 128, 0xAAAA, np.uint16)
        out = memory[64 + skew : 64 + skew + size]
        to_bf16(x, out=out, **mode)
        assert np.array_equal(out, codes)
        assert (memory[: 64 + skew] == 0xAAAA).all() and (memory[64 + skew + size :] == 0xAAAA).all()


def test_large_output_is_streamed_and_right():
    x = np.random.default_rng(0).standard_normal(r.STREAM_BYTES // 2 + 1000, np.float32)
    out = np.zeros(x.size + 3, np.uint16)[3:]
    to_bf16(x, out=out)
    ends = np.r_[0:2000, x.size - 2000 : x.size]
    assert np.array_equal(out[ends], to_bf16(x[ends]))
    wide = to_bf16(x, out=np.zeros_like(x))
    assert np.array_equal(wide.view(np.uint32) >> 16, out)


# ---- random bits


def test_random_words_are_the_specified_ones():
    first = 2**32 - 3  # across the upper half of the index
    got = r.random_words(6, seed=-5, first=first)
    assert got.tolist() == [spec.random_word(first + i, -5) for i in range(6)]


@pytest.mark.parametrize("mode", ["SR", "SRC"])
def test_stochastic_bits_belong_to_the_element(mode):
    x = np.random.default_rng(4).standard_normal(10_000, np.float32)
    whole = to_bf16(x, mode, seed=9, random_bits=8)
    for threads in (2, 3, 5):
        assert np.array_equal(to_bf16(x, mode, seed=9, random_bits=8, threads=threads), whole)
    parts = [to_bf16(x[a:b], mode, seed=9, random_bits=8, first=a) for a, b in ((0, 1), (1, 4097), (4097, 10_000))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(to_bf16(x, mode, seed=10, random_bits=8), whole)


def test_deterministic_modes_do_not_depend_on_threads():
    x = adversarial(20_000)
    for fmt in (to_bf16, to_fp16):
        assert np.array_equal(fmt(x, threads=3).view(np.uint16), fmt(x).view(np.uint16))


def test_given_random_integers():
    x = np.full(256, 1 + 2**-8, np.float32)  # halfway between two codes
    codes = to_bf16(x, "SR", random_bits=8, random=np.arange(256))
    assert np.array_equal(codes == 0x3F81, np.arange(256) >= 128)


def test_random_words_look_random():
    count = 1 << 20
    words = r.random_words(count, seed=1)
    ones = [np.count_nonzero(words >> np.uint32(bit) & 1) / count for bit in range(32)]
    assert max(abs(share - 0.5) for share in ones) < 5 * 0.5 / count**0.5
    bytes_seen = np.bincount(words >> 24, minlength=256)
    chi_square = float(np.sum((bytes_seen - count / 256) ** 2 / (count / 256)))
    assert abs(chi_square - 255) < 5 * (2 * 255) ** 0.5
    unit = words / 2.0**32 - 0.5
    others = {
        "the next element": np.roll(unit, 1),
        "element + 2^16": np.roll(unit, 1 << 16),
        "the next seed": r.random_words(count, seed=2) / 2.0**32 - 0.5,
        "the next 2^32 elements": r.random_words(count, seed=1, first=2**32) / 2.0**32 - 0.5,
    }
    for what, other in others.items():
        assert abs(float(np.mean(unit * other)) * 12) < 5 / count**0.5, what


# ---- importing and errors


def test_importing_does_not_import_torch():
    code = "import sys, lab.sim.rounding.drift, lab.sim.rounding.identify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ONE = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: to_bf16(np.ones(4)), "must be float32: 'float64'"),
        (lambda: to_bf16([1.0]), "neither a numpy array nor a torch tensor: 'list'"),
        (lambda: to_bf16(ONE, "nearest"), "unknown rounding mode"),
        (lambda: to_bf16(ONE, out=np.zeros(5, np.uint16)), "another shape"),
        (lambda: to_bf16(ONE, out=np.zeros(4, np.float16)), "cannot hold bf16"),
        (lambda: to_fp16(ONE, out=np.zeros(4, np.float64)), "cannot hold fp16"),
        (lambda: to_bf16(ONE, out=np.broadcast_to(np.uint16(0), 4)), "read-only"),
        (lambda: to_bf16(ONE, "SR"), "needs a seed"),
        (lambda: to_bf16(ONE, "SR", seed=0, random_bits=17), "takes 1 to 16"),
        (lambda: to_fp16(ONE, "SRC", seed=0, random_bits=13), "takes 1 to 12"),
        (lambda: to_bf16(ONE, "RNE", seed=0), "takes no random bits"),
        (lambda: to_bf16(ONE, "SR", seed=0, random=np.zeros(4, int)), "not both"),
        (lambda: to_bf16(ONE, "SR", random=np.zeros(3, int)), "one integer for each element"),
        (lambda: to_bf16(ONE, "SR", random_bits=2, random=np.full(4, 4)), "out of range"),
        (lambda: to_bf16(ONE, "SR", seed=0, first=-1), "negative"),
        (lambda: to_fp16(ONE, "LOW16"), "bf16 only"),
        (lambda: to_bf16(ONE, "RU", nan=NanRule.UNGUARDED), "without a NaN guard"),
        (lambda: to_bf16(ONE, threads=0), "at least 1"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(LabError, match=message):
        call()
