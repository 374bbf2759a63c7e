"""fp32 -> bf16 and fp16 in every rounding mode, at the speed of a copy.

    from lab.sim.rounding.convert import RoundMode, to_bf16
    codes = to_bf16(x)                                # uint16 codes, nearest even
    to_bf16(x, "RTZ", out=y)                          # into your own array or tensor
    to_bf16(x, "SR", random_bits=8, seed=1, out=y)    # stochastic, 8 random bits an element

The modes, their overflow and their NaN rules are in `lab.sim.rounding.modes`; what each means for one number is in
`lab.sim.rounding.spec`; that both agree on all 2^32 inputs is shown by `lab rounding prove`.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lab.errors import LabError, UnknownNameError
from lab.sim.rounding import loops
from lab.sim.rounding.modes import (
    AITER_CODES,
    CK_CODES,
    DETERMINISTIC_MODES,
    UNGUARDED_MODES,
    Conversion,
    NanRule,
    RoundMode,
    conversion,
)
from lab.sim.rounding.spec import counter_key

__all__ = [
    "AITER_CODES",
    "CK_CODES",
    "DETERMINISTIC_MODES",
    "Conversion",
    "NanRule",
    "RoundMode",
    "bf16_to_fp32",
    "conversion",
    "max_random_bits",
    "random_words",
    "round_with",
    "to_bf16",
    "to_fp16",
]

FORMATS = ("bf16", "fp16")

#: Outputs of this many bytes and more are written past the caches (see rounding_loops).
STREAM_BYTES = 2 << 20


def to_bf16(
    x: Any,
    mode: str | RoundMode = RoundMode.TiesToEven,
    *,
    out: Any = None,
    nan: NanRule = NanRule.QUIET,
    random_bits: int | None = None,
    seed: int | None = None,
    first: int = 0,
    random: np.ndarray | None = None,
    threads: int = 1,
) -> Any:
    """Round fp32 to bf16.

    Args:
        x: numpy array or torch CPU tensor of float32, any shape. Contiguous memory is read in place.
        mode: a RoundMode or its name ("RNE", "TowardZero", ...).
        out: where to write, of x's shape: uint16 or int16 (codes), float32 (bf16 values), ml_dtypes.bfloat16, or a
            torch tensor of bfloat16, float32, int16 or uint16. float32 may be x itself. None: uint16 for numpy,
            torch.bfloat16 for torch.
        nan: what a NaN input becomes. The default sets the quiet bit and keeps sign and leading payload.
        random_bits: k of SR and SRC, 1 to 16; None: 16.
        seed: for SR and SRC: any integer. Element i uses the random word (seed, first + i), in C order, whatever
            the number of threads.
        first: index of the first element: pieces of one array rounded apart give the bits of the whole.
        random: instead of a seed: an integer below 2^k for each element.
        threads: how many threads share the work; one thread is within 15 % of the memory's speed.

    Returns:
        `out`, or the new array or tensor.

    Raises:
        LabError: wrong dtype, device, shape or argument; the message says which.
        UnknownNameError: unknown mode.
    """
    return _round("bf16", x, mode, out, nan, random_bits, seed, first, random, threads)


def to_fp16(
    x: Any,
    mode: str | RoundMode = RoundMode.TiesToEven,
    *,
    out: Any = None,
    nan: NanRule = NanRule.QUIET,
    random_bits: int | None = None,
    seed: int | None = None,
    first: int = 0,
    random: np.ndarray | None = None,
    threads: int = 1,
) -> Any:
    """Round fp32 to fp16.

    Args:
        x: as in `to_bf16`.
        mode: as in `to_bf16`, without the two modes that exist for bf16 only.
        out: float16, uint16, int16 or float32 (fp16 values), numpy or torch. None: float16.
        nan: QUIET or CANONICAL.
        random_bits: k of SR (1 to 13) and SRC (1 to 12); None: the largest. Below 2^-14 the cut-off part can have
            more than 13 bits; what lies below them does not count.
        seed: as in `to_bf16`.
        first: as in `to_bf16`.
        random: as in `to_bf16`.
        threads: as in `to_bf16`.

    Returns:
        `out`, or the new array or tensor.

    Raises:
        LabError: as in `to_bf16`.
    """
    return _round("fp16", x, mode, out, nan, random_bits, seed, first, random, threads)


def round_with(name: str, x: Any, *, out: Any = None) -> Any:
    """Round fp32 to bf16 with a named deterministic conversion: a mode, or a code such as "aiter-2" or "ck-1".

    Args:
        name: see `lab.sim.rounding.modes.conversion`.
        x: as in `to_bf16`.
        out: as in `to_bf16`.

    Returns:
        `out`, or the new array or tensor.

    Raises:
        UnknownNameError: no such conversion.
        LabError: "aiter-4", which has no branch in its source.
    """
    found = conversion(name)
    assert found.mode is not None
    nan = NanRule.QUIET if found.mode.bf16_only else found.nan
    return to_bf16(x, found.mode, out=out, nan=nan)


def max_random_bits(fmt: str, mode: RoundMode) -> int:
    """The largest k of a stochastic mode: the cut-off bits, less one for SRC in fp16, which needs half a step."""
    return loops.CUT_BITS[fmt] - (fmt == "fp16" and mode is RoundMode.StochasticCentred)


def bf16_to_fp32(codes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Widen bf16 codes to fp32, exactly.

    Args:
        codes: uint16, any shape.
        out: float32 of the same shape, C-contiguous; None: a new array.

    Returns:
        float32.
    """
    if out is None:
        out = np.empty(codes.shape, np.float32)
    words = out.view(np.uint32)
    np.left_shift(codes, 16, out=words, dtype=np.uint32, casting="unsafe")
    return out


def random_words(count: int, seed: int, first: int = 0) -> np.ndarray:
    """The random words of elements first .. first + count - 1 under a seed (uint32[count]).

    SR with k bits uses the top k bits of each. See `rounding_spec.random_word` for the definition.
    """
    out = np.empty(count, np.uint32)
    for start, stop, low, key0, key1 in _counter_spans(count, seed, first):
        loops.random_words(low, key0, key1, out[start:stop])
    return out


# ---- the work


def _round(fmt, x, mode, out, nan, random_bits, seed, first, random, threads):
    mode = RoundMode.parse(mode)
    if fmt != "bf16" and mode.bf16_only:
        raise LabError("this mode exists for bf16 only", value=mode.value)
    if nan is not NanRule.QUIET and mode.bf16_only:
        raise LabError("this mode has its own rule for NaN", value=mode.value, hint="leave `nan` out")
    if fmt != "bf16" and nan not in (NanRule.QUIET, NanRule.CANONICAL):
        raise LabError("this NaN rule exists for bf16 only", value=nan.value)
    if nan is NanRule.UNGUARDED and mode not in UNGUARDED_MODES:
        raise LabError("no kernel is known to have this mode without a NaN guard", value=mode.value)
    words, shape = _input_words(x)
    convert = _converter(fmt, mode, random_bits, seed, first, random, words.size)
    if out is None:
        out = _new_output(fmt, x)
    target, shift, after = _output_codes(fmt, out, shape)
    if np.may_share_memory(target, words) and target.ctypes.data != words.ctypes.data:
        words = words.copy()  # parts of the input would be overwritten before they are read
    shift = np.uint32(shift)
    if threads < 1:
        raise LabError("the number of threads must be at least 1", value=threads)
    chunk = -(-words.size // (threads * loops.BLOCK)) * loops.BLOCK or 1
    if threads == 1 or words.size <= chunk:
        convert(words, target, 0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(
                pool.map(
                    lambda start: convert(words[start : start + chunk], target[start : start + chunk], start),
                    range(0, words.size, chunk),
                )
            )
    if nan is not NanRule.QUIET:
        _patch_nan(fmt, words, target, shift, mode, nan)
    after()
    return out


def _converter(fmt, mode, random_bits, seed, first, random, size) -> Callable:
    """A function (words, target, start) that rounds a contiguous piece which begins at element `start`."""
    if not mode.is_stochastic:
        if random_bits is not None or seed is not None or random is not None:
            raise LabError("this mode takes no random bits", value=mode.value, hint="use SR or SRC")
        run = loops.loop(fmt, mode)

        def deterministic(words, target, start):
            block, lead, streaming = _staging(target, loops.STREAM_BLOCK)
            run(words, target, block, lead, streaming, *loops.NO_RANDOM)

        return deterministic

    most = max_random_bits(fmt, mode)
    bits = most if random_bits is None else random_bits
    if not 1 <= bits <= most:
        raise LabError(
            "number of random bits out of range", value=bits, hint=f"{mode.value} to {fmt} takes 1 to {most}"
        )
    lift, half = lift_and_half(fmt, mode, bits)
    if random is not None:
        if seed is not None:
            raise LabError("give either a seed or the random integers, not both")
        numbers = np.ascontiguousarray(random).reshape(-1)
        if numbers.dtype.kind not in "ui" or numbers.size != size:
            raise LabError("random must hold one integer for each element", value=f"{numbers.dtype}[{numbers.size}]")
        if size and not 0 <= int(numbers.min()) <= int(numbers.max()) < 2**bits:
            raise LabError("a random integer is out of range", hint=f"with {bits} bits: 0 to {2**bits - 1}")
        numbers = numbers.astype(np.uint32, copy=False)
        run_given = loops.stochastic_given_loop(fmt)

        def given(words, target, start):
            run_given(words, target, numbers[start : start + words.size], lift, half)

        return given

    if seed is None:
        raise LabError(f"{mode.value} needs a seed", hint="seed=0 will do; the same seed gives the same bits")
    mask = np.uint32((2**bits - 1) << int(lift))
    run_counted = loops.loop(fmt, RoundMode.Stochastic)

    def counted(words, target, start):
        block, lead, streaming = _staging(target, loops.STREAM_BLOCK_RANDOM)
        for begin, end, low, key0, key1 in _counter_spans(words.size, seed, first + start):
            run_counted(
                words[begin:end], target[begin:end], block, lead, streaming and begin == 0,
                low, key0, key1, mask, half,
            )  # fmt: skip

    return counted


def lift_and_half(fmt: str, mode: RoundMode, bits: int) -> tuple[np.uint32, np.uint32]:
    """Where k random bits go below the code, and half a random step there (zero if plain or below the last bit)."""
    lift = loops.CUT_BITS[fmt] - bits
    half = 1 << (lift - 1) if mode is RoundMode.StochasticCentred and lift > 0 else 0
    return np.uint32(lift), np.uint32(half)


def _counter_spans(count, seed, first):
    """Cut a range of elements where the upper half of the index changes: (start, stop, low index, key0, key1)."""
    if first < 0:
        raise LabError("the index of the first element is negative", value=first)
    start = 0
    while start < count:
        upper, low = divmod(first + start, 2**32)
        stop = min(count, start + 2**32 - low)
        key0, key1 = counter_key(upper, seed)
        yield start, stop, np.uint32(low), np.uint32(key0), np.uint32(key1)
        start = stop


def _staging(target, stream_block):
    """A block for the loop, how many elements come before `target` is aligned to a line, and whether to stream."""
    if target.nbytes < STREAM_BYTES:
        # float32 may be the input itself: without a block the compiler's check for overlap would pick its slow loop
        return np.empty(loops.BLOCK if target.dtype == np.uint32 else 0, target.dtype), 0, False
    raw = np.empty(stream_block + loops.LINE, np.uint8)
    skip = -raw.ctypes.data % loops.LINE
    lead = -target.ctypes.data % loops.LINE // target.itemsize
    return raw[skip : skip + stream_block].view(target.dtype), lead, True


def _patch_nan(fmt, words, target, shift, mode, nan):
    if nan is NanRule.KEEP_SIGNALLING:
        loops.bf16_nan_keep_signalling(words, target, shift)
    elif nan is NanRule.ALL_ONES:
        loops.nan_constant(words, target, shift, np.uint32(0x7FFF))
    elif nan is NanRule.CANONICAL:
        loops.nan_constant(words, target, shift, np.uint32(0x7FC0 if fmt == "bf16" else 0x7E00))
    else:
        carry, odd = {
            RoundMode.TiesToEven: (0x7FFF, 1),
            RoundMode.TowardZero: (0, 0),
            RoundMode.TiesToAway: (0x8000, 0),
        }[mode]
        loops.bf16_nan_unguarded(words, target, shift, np.uint32(carry), np.uint32(odd))


# ---- arrays and tensors, without importing torch


def _is_tensor(x) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _as_numpy(x, what: str) -> np.ndarray:
    """A numpy view of an array or CPU tensor; 16-bit floats of torch come as uint16."""
    if _is_tensor(x):
        torch = sys.modules["torch"]
        if x.device.type != "cpu":
            raise LabError(f"the {what} is not on the CPU", value=str(x.device), hint="call .cpu() first")
        x = x.detach()
        if x.dtype in (torch.bfloat16, torch.float16):
            x = x.view(torch.int16)
        return x.numpy()
    if not isinstance(x, np.ndarray):
        raise LabError(f"the {what} is neither a numpy array nor a torch tensor", value=type(x).__name__)
    return x


def _input_words(x) -> tuple[np.ndarray, tuple[int, ...]]:
    array = _as_numpy(x, "input")
    if array.dtype != np.float32:
        hint = "float64 would be rounded twice; convert it to float32 yourself if that is meant"
        raise LabError("the input must be float32", value=str(getattr(x, "dtype", array.dtype)), hint=hint)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32), array.shape


def _new_output(fmt, x):
    if _is_tensor(x):
        torch = sys.modules["torch"]
        return torch.empty(x.shape, dtype=torch.bfloat16 if fmt == "bf16" else torch.float16)
    return np.empty(x.shape, np.uint16 if fmt == "bf16" else np.float16)


def _output_codes(fmt, out, shape) -> tuple[np.ndarray, int, Callable]:
    """Flat memory for the codes, the shift to apply, and what to do once they are there."""
    array = _as_numpy(out, "output")
    if array.shape != shape:
        raise LabError("out has another shape than the input", value=tuple(array.shape), hint=f"input: {shape}")
    if not array.flags.writeable:
        raise LabError("out is read-only")
    own = {"bf16": ("bfloat16",), "fp16": ("float16",)}[fmt]
    foreign = {"bf16": "float16", "fp16": "bfloat16"}[fmt]
    given = str(out.dtype).removeprefix("torch.")
    wide = array.dtype == np.float32
    if given == foreign or not (wide or given in own or array.dtype in (np.uint16, np.int16)):
        hint = f"use uint16 (codes), float32 (values) or {own[0]}"
        raise LabError(f"out cannot hold {fmt}", value=given, hint=hint)
    if wide and fmt == "bf16":
        flat, copy_back = _flat(array.view(np.uint32))
        return flat, 16, copy_back
    if wide:
        codes = np.empty(array.size, np.uint16)
        return codes, 0, lambda: np.copyto(array, codes.view(np.float16).reshape(shape))
    flat, copy_back = _flat(array.view(np.uint16))
    return flat, 0, copy_back


def _flat(array) -> tuple[np.ndarray, Callable]:
    if array.flags.c_contiguous:
        return array.reshape(-1), lambda: None
    flat = np.empty(array.size, array.dtype)
    return flat, lambda: np.copyto(array, flat.reshape(array.shape))


def check_format(fmt: str) -> str:
    """Return `fmt` if it is "bf16" or "fp16".

    Raises:
        UnknownNameError: it is neither.
    """
    if fmt not in FORMATS:
        raise UnknownNameError("format", fmt, FORMATS)
    return fmt
