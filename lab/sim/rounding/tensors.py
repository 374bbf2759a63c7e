"""Read a user's updates from .npz and .safetensors."""

import json
from pathlib import Path

import numpy as np

from lab.errors import LabError
from lab.sim.rounding.arrays import existing_file, read_npz
from lab.sim.rounding.convert import bf16_to_fp32

SAFETENSORS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def load_updates(path: str | Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Read `updates` [steps, world, ...] and, if it is there, `residual` [...] (the stream before the first).

    Args:
        path: .npz or .safetensors. Floats of 16, 32 or 64 bits; in .npz, uint16 is taken as bf16 codes.

    Returns:
        updates and residual as float32; residual None if the file has none.

    Raises:
        LabError: the file cannot be read or lacks `updates`.
    """
    path = existing_file(path)
    if path.suffix == ".npz":
        arrays = read_npz(path)
    elif path.suffix == ".safetensors":
        arrays = _read_safetensors(path)
    else:
        raise LabError("updates come from .npz or .safetensors", value=str(path))
    if "updates" not in arrays:
        have = ", ".join(sorted(arrays)) or "nothing"
        raise LabError("the file has no array `updates`", value=str(path), hint=f"it has: {have}")
    residual = arrays.get("residual")
    return _float32(arrays["updates"], "updates"), None if residual is None else _float32(residual, "residual")


def _float32(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype == np.uint16:
        return bf16_to_fp32(np.ascontiguousarray(array))
    if array.dtype.kind != "f":
        raise LabError(f"`{name}` holds no floating-point numbers", value=str(array.dtype))
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The format is 8 bytes of header length, a JSON header, then the data; bf16 comes out as uint16 codes."""
    data = path.read_bytes()
    try:
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError("header")
        header = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        arrays = {}
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in SAFETENSORS:
                continue
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(body):
                raise ValueError(name)
            flat = np.frombuffer(body[begin:end], SAFETENSORS[entry["dtype"]])
            arrays[name] = flat.reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LabError(
            "this is not a .safetensors file", value=str(path), hint="it is damaged, or something else"
        ) from error
    return arrays
