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


def cut_off(path: Path) -> None:
    """Half of it, as by a copy that was interrupted."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    """As by a disk that was full."""
    path.write_bytes(b"")


def overwrite_the_middle(path: Path) -> None:
    """A fifth of it."""
    content = bytearray(path.read_bytes())
    some = len(content) // 5
    content[2 * some : 3 * some] = b"\xa5" * some
    path.write_bytes(content)


def overwrite_the_beginning(path: Path) -> None:
    """A fifth of it."""
    content = bytearray(path.read_bytes())
    content[: len(content) // 5] = bytes(len(content) // 5)
    path.write_bytes(content)
