"""What add_rmsnorm must give, bit for bit: `hip/norm.hpp` in numpy.

Everything is fp32, one IEEE operation after another; `Points` says where it is rounded to the element type. No room of
the simulator is needed here: the start-up check of an engine compares with this on every rank. A test compares it with
the simulator's arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import LabError
from lab.kernels.reference import BITS, narrow, widen

LEAVES = 2048  # of the tree over a row's vectors of 16 bytes

Rounder = Callable[[np.ndarray, str], np.ndarray]
"""(float32 values, element type) -> bit patterns."""


@dataclass(frozen=True)
class Points:
    """Where the kernel rounds to the element type, besides the new residual and the output, which it stores.

    The default is what separate kernels do: all-reduce, round, add, round, norm.

    Attributes:
        sum_rounded: the all-reduced sum, before the residual is added.
        norm_of_stored: the norm reads the residual as it is stored, and not the fp32 sum behind it.
        normalised_rounded: the normalised value, before it is multiplied by the weight.
        weight_plus_one: no rounding: Gemma's weights count from 1.
    """

    sum_rounded: bool = True
    norm_of_stored: bool = True
    normalised_rounded: bool = False
    weight_plus_one: bool = False

    def word(self) -> int:
        """`Norm::points` of the kernel: the bits of lab::Point."""
        return self.sum_rounded | self.norm_of_stored << 1 | self.normalised_rounded << 2 | self.weight_plus_one << 3


def sum_of_squares(rows: np.ndarray, per_vector: int) -> np.ndarray:
    """Each row's sum of squares in the kernel's order: float32 (tokens, hidden) to (tokens,).

    A vector's `per_vector` elements are summed from its first on; the vectors' sums are the leaves of a tree over
    `LEAVES` places, where each is added to the one half of them further on, until one is left.

    Raises:
        LabError: a row has more vectors than that.
    """
    tokens, hidden = rows.shape
    if not 1 <= hidden <= LEAVES * per_vector:
        raise LabError("a row does not fit the kernel", value=hidden, hint=f"1 to {LEAVES * per_vector} elements")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        squares = np.zeros((tokens, LEAVES * per_vector), np.float32)
        squares[:, :hidden] = rows * rows
        squares = squares.reshape(tokens, LEAVES, per_vector)
        tree = squares[:, :, 0].copy()
        for element in range(1, per_vector):
            tree += squares[:, :, element]
        while tree.shape[1] > 1:
            half = tree.shape[1] // 2
            tree = tree[:, :half] + tree[:, half:]
    return tree[:, 0]


def add_rmsnorm_bits(
    inputs: Sequence[np.ndarray],
    residual: np.ndarray,
    weight: np.ndarray,
    dtype: str,
    points: Points,
    *,
    eps: float = 1e-6,
    rounder: Rounder = narrow,
) -> tuple[np.ndarray, np.ndarray]:
    """The result on every rank.

    Args:
        inputs: per rank, bit patterns (tokens, hidden), uint16 or (fp32) uint32.
        residual: (tokens, hidden), the same on every rank.
        weight: (hidden,).
        dtype: "fp32", "fp16" or "bf16".
        points: where to round.
        eps: added to the mean square, as float32.
        rounder: how to round; nearest even by default.

    Returns:
        (output, new residual), bit patterns (tokens, hidden).
    """
    if residual.dtype != BITS[dtype]:
        raise LabError(f"{dtype} is carried as bit patterns", value=str(residual.dtype), hint=BITS[dtype].__name__)
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        total = widen(inputs[0], dtype).copy()
        for bits in inputs[1:]:
            total += widen(bits, dtype)
        if points.sum_rounded:
            total = widen(rounder(total, dtype), dtype)
        total = widen(residual, dtype) + total
        stored = rounder(total, dtype)
        read = widen(stored, dtype) if points.norm_of_stored else total
        mean = sum_of_squares(read, 16 // residual.itemsize) / np.float32(residual.shape[1])
        scale = np.float32(1) / np.sqrt(mean + np.float32(eps))
        normal = read * scale[:, None]
        if points.normalised_rounded:
            normal = widen(rounder(normal, dtype), dtype)
        offset = np.float32(1 if points.weight_plus_one else 0)
        return rounder(normal * (widen(weight, dtype) + offset), dtype), stored
