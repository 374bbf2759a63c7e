"""What an all-reduce must give, bit for bit: the fp32 sum in rank order, rounded once to nearest even."""

from collections.abc import Sequence

import numpy as np

BITS = {"fp32": np.uint32, "fp16": np.uint16, "bf16": np.uint16}
CANONICAL_NAN = {"fp32": 0x7FC00000, "fp16": 0x7E00, "bf16": 0x7FC0}


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bit patterns of `dtype` as float32, exactly."""
    if dtype == "fp32":
        return bits.view(np.float32)
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 to bit patterns of `dtype`, nearest even; every NaN becomes the canonical one."""
    if dtype == "fp32":
        bits = values.view(np.uint32).copy()
    elif dtype == "fp16":
        with np.errstate(over="ignore"):
            bits = values.astype(np.float16).view(np.uint16)
    else:
        wide = values.view(np.uint32)
        bits = ((wide + (0x7FFF + (wide >> 16 & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    bits[np.isnan(values)] = CANONICAL_NAN[dtype]
    return bits


def all_reduce_bits(inputs: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """The result on every rank.

    Args:
        inputs: per rank, a 1-d array of bit patterns, uint16 or (fp32) uint32.
        dtype: "fp32", "fp16" or "bf16".
    """
    total = widen(inputs[0], dtype).copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for bits in inputs[1:]:
            total += widen(bits, dtype)
    return narrow(total, dtype)
