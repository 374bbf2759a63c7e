"""Arrays as users bring them: files that may be anything, and numbers in either byte order."""

from pathlib import Path

import numpy as np

from lab.errors import LabError


def existing_file(path: str | Path) -> Path:
    """The path of a file.

    Raises:
        LabError: There is none, or it is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise LabError("this is a folder, not a file", value=str(path), hint="name a file in it")
    if not path.exists():
        raise LabError("there is no such file", value=str(path))
    return path


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file, in the byte order of this machine.

    Raises:
        LabError: It is no .npz file, is damaged, or holds Python objects, which are never loaded.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if start not in (b"PK\x03\x04", b"PK\x05\x06"):  # a zip with members, an empty one
        raise LabError(
            "this is not a .npz file of plain arrays",
            value=str(path),
            hint="it is no zip archive; numpy.savez writes one",
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: native(archive[name]) for name in archive.files}
    except Exception as error:
        # numpy and zipfile raise dozens of types on damaged bytes, and what they say is for programmers (that the file
        # might be loaded unsafely, for one). Only the system's own word helps.
        why = error.strerror if isinstance(error, OSError) else None
        raise LabError(
            "this is not a .npz file of plain arrays",
            value=str(path),
            hint=why or "it is damaged, or holds something else than arrays of numbers",
        ) from error


def native(array: np.ndarray) -> np.ndarray:
    """The same numbers in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
