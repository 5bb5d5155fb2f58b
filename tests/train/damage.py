"""Damage to files, as disks and copies do it."""

import struct
import zipfile
from pathlib import Path

_LOCAL_HEADER_BYTES = 30  # of a zip, ending with the lengths of the name and of the rest


def flip_a_bit(path: Path, part: str) -> None:
    """One bit of the last byte of a part of a file of torch.save."""
    with zipfile.ZipFile(path) as file:
        (found,) = (each for each in file.infolist() if each.filename.endswith(f"/{part}"))
    content = bytearray(path.read_bytes())
    header_end = found.header_offset + _LOCAL_HEADER_BYTES
    lengths = struct.unpack("<HH", content[header_end - 4 : header_end])
    content[header_end + sum(lengths) + found.file_size - 1] ^= 1
    path.write_bytes(content)
