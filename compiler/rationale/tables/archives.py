"""Arrays from .npy and .npz files of unknown origin: no pickles, and no inflation beyond a limit."""

import io
import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from rationale.errors import LargeReferencesError

MOST_MEMBERS = 256
_STORED_OR_DEFLATED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}  # version 3.0 is for structured arrays with names that are not Latin
_KINDS = "fiubU"


def read_npy(file: BinaryIO, most_bytes: int | None = None) -> np.ndarray:
    """Read one array.

    Raises:
        ValueError: if the file is damaged or holds Python objects.
        LargeReferencesError: if the array needs more than `most_bytes`.
    """
    data = file.read() if most_bytes is None else file.read(most_bytes + 1)
    if most_bytes is not None and len(data) > most_bytes:
        raise LargeReferencesError(f"the array has more than {most_bytes} bytes.")
    return _array(data)


def read_npz(file: BinaryIO, most_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Read arrays by name. Check a member's stated size before inflating any of it.

    Raises:
        ValueError, zipfile.BadZipFile: if the file is damaged, or holds Python objects or strange members.
        LargeReferencesError: if all arrays together need more than `most_bytes`.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise ValueError(f"an archive of {len(members)} files: {MOST_MEMBERS} at most")
        total = sum(member.file_size for member in members)
        if most_bytes is not None and total > most_bytes:
            raise LargeReferencesError(f"the archive inflates to {total} bytes; {most_bytes} at most.")
        arrays: dict[str, np.ndarray] = {}
        for member in members:
            name = _name(member)
            if name in arrays:
                raise ValueError(f"two members are named {name!r}")
            arrays[name] = _array(archive.read(member))
    return arrays


def write_npz(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays under any names, so that `read_npz` reads them."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _name(member: zipfile.ZipInfo) -> str:
    shown = member.filename[:80]
    if not member.filename.endswith(".npy"):
        raise ValueError(f"member {shown!r} is not a .npy array")
    if member.flag_bits & _ENCRYPTED or member.compress_type not in _STORED_OR_DEFLATED:
        raise ValueError(f"member {shown!r} is encrypted, or compressed in an unusual way")
    return member.filename.removesuffix(".npy")


def _array(data: bytes) -> np.ndarray:
    """Return the array of a .npy file. Check its header before memory of its size is allocated."""
    file = io.BytesIO(data)
    read_header = _HEADERS.get(np.lib.format.read_magic(file))
    if read_header is None:
        raise ValueError("an array in an unsupported version of the format")
    shape, by_column, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("pickled Python objects, which Rationale never loads: save plain numbers")
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}, not of numbers")
    count, data_bytes = 1, len(data) - file.tell()
    for size in shape:  # as Python counts: no size is large enough to wrap around
        count *= size
    if min(shape, default=0) < 0 or count * dtype.itemsize != data_bytes:
        raise ValueError(f"an array {list(shape)} of {dtype} whose data has {data_bytes} bytes")
    array = np.frombuffer(data, dtype, count, file.tell())
    return array.reshape(shape, order="F" if by_column else "C")
