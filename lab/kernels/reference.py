"""What a call must give, bit for bit: the fp32 sum in rank order, rounded once, in every mode of the kernels.

Plain integer arithmetic on whole arrays, written from IEEE 754 and the modes' definitions, not from the device code.
"""

from collections.abc import Sequence

import numpy as np

from lab.errors import UnknownNameError

BITS = {"fp32": np.uint32, "fp16": np.uint16, "bf16": np.uint16}
CANONICAL_NAN = {"fp32": 0x7FC00000, "fp16": 0x7E00, "bf16": 0x7FC0}
MODES = ("RNE", "RTZ", "RNA", "RU", "RD", "RAZ", "RTO", "SR")
_INFINITY = np.uint32(0x7F800000)
_LARGEST_FP16, _INFINITY_FP16 = 0x7BFF, 0x7C00


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bit patterns of `dtype` as float32, exactly."""
    if dtype == "fp32":
        return bits.view(np.float32)
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray, dtype: str, rounding: str = "RNE", random: np.ndarray | None = None) -> np.ndarray:
    """float32 to bit patterns of `dtype`, rounded once; every NaN becomes the canonical one.

    Args:
        values: float32, of any shape.
        dtype: "fp32" (nothing is rounded), "fp16" or "bf16".
        rounding: one of MODES.
        random: for SR, 32 random bits a value (uint32), as `random_bits` gives them.
    """
    if rounding not in MODES:
        raise UnknownNameError("rounding mode", rounding, MODES)
    wide = np.ascontiguousarray(values).view(np.uint32)
    if dtype == "fp32":
        bits = wide.copy()
    else:
        magnitude, negative = wide & np.uint32(0x7FFFFFFF), (wide >> 31).astype(bool)
        chance = np.zeros_like(wide) if random is None else random
        rounded = _to_bf16 if dtype == "bf16" else _to_fp16
        sign = np.where(negative, np.uint32(0x8000), np.uint32(0))
        bits = (sign | rounded(magnitude, negative, rounding, chance)).astype(np.uint16)
    bits[np.isnan(values)] = CANONICAL_NAN[dtype]
    return bits


def _to_bf16(magnitude: np.ndarray, negative: np.ndarray, rounding: str, random: np.ndarray) -> np.ndarray:
    return _shift(magnitude, np.uint32(16), negative, rounding, random)


def _to_fp16(magnitude: np.ndarray, negative: np.ndarray, rounding: str, random: np.ndarray) -> np.ndarray:
    """Normal results keep the exponent in place; subnormal ones are multiples of 2^-24."""
    exponent = magnitude >> 23
    normal = exponent >= 113
    significand = np.where(exponent > 0, (magnitude & 0x7FFFFF) | 0x800000, magnitude).astype(np.uint32)
    drop = np.minimum(126 - np.maximum(exponent, 1).astype(np.int64), 31)
    kept = np.where(normal, magnitude - np.uint32(112 << 23), significand).astype(np.uint32)
    small = _shift(kept, np.where(normal, 13, np.maximum(drop, 1)).astype(np.uint32), negative, rounding, random)
    inward = (rounding in ("RTZ", "RTO")) | (rounding == "RU") & negative | (rounding == "RD") & ~negative
    large = np.where(inward & (magnitude != _INFINITY), _LARGEST_FP16, _INFINITY_FP16)
    return np.where(magnitude >= 0x47800000, large, small).astype(np.uint32)


def _shift(magnitude: np.ndarray, drop: np.ndarray, negative: np.ndarray, rounding: str, random: np.ndarray):
    """Magnitude / 2^drop to an integer; 1 <= drop <= 31."""
    kept = magnitude >> drop
    rest = (magnitude - (kept << drop)).astype(np.uint64)
    whole = np.uint64(1) << drop.astype(np.uint64)
    inexact = rest > 0
    up = {
        "RNE": (2 * rest > whole) | (2 * rest == whole) & (kept % 2 == 1),
        "RTZ": np.zeros(kept.shape, bool),
        "RNA": 2 * rest >= whole,
        "RU": inexact & ~negative,
        "RD": inexact & negative,
        "RAZ": inexact,
        "RTO": inexact & (kept % 2 == 0),
        "SR": rest + (random >> (np.uint32(32) - drop)) >= whole,
    }[rounding]
    return kept + up


def random_bits(index: np.ndarray, epoch: int, seed: int) -> np.ndarray:
    """The 32 bits that stochastic rounding uses for element `index` of call `epoch`: Philox2x32 with ten rounds."""
    first, second = index.astype(np.uint64), np.full(index.shape, epoch & 0xFFFFFFFF, np.uint64)
    key, low = seed & 0xFFFFFFFF, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        product = np.uint64(0xD256D193) * first
        first, second = (product >> np.uint64(32)) ^ np.uint64(key) ^ second, product & low
        key = key + 0x9E3779B9 & 0xFFFFFFFF
    return first.astype(np.uint32)


def all_reduce_bits(
    inputs: Sequence[np.ndarray], dtype: str, rounding: str = "RNE", *, epoch: int = 0, seed: int = 0
) -> np.ndarray:
    """The result on every rank.

    Args:
        inputs: per rank, a 1-d array of bit patterns, uint16 or (fp32) uint32.
        dtype: "fp32", "fp16" or "bf16".
        rounding: one of MODES.
        epoch: number of the call, for SR.
        seed: the call's rounding_seed, for SR.
    """
    total = widen(inputs[0], dtype).copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for bits in inputs[1:]:
            total += widen(bits, dtype)
    chance = random_bits(np.arange(total.size), epoch, seed) if rounding == "SR" and dtype != "fp32" else None
    return narrow(total, dtype, rounding, chance)
