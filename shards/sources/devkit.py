"""The development kit of ILSVRC2012 and its classes of the validation images.

Line i of its ground truth is the ILSVRC2012_ID of validation image i; meta.mat tells the wnid of
each ID. IDs are no positions among the sorted wnids: n01440764, the first of these, has ID 449.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from accelssl.errors import UserError
from accelssl.shards.sources.folder_entries import refuse_special

DEVKIT_NAMES = (
    "ILSVRC2012_devkit_t12",
    "ILSVRC2012_devkit_t12.tar.gz",
    "ILSVRC2012_devkit_t12.tar",
)
_META, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_REMEDY = "Give ILSVRC2012_devkit_t12.tar.gz as downloaded, or the folder extracted from it."


def read_devkit(devkit: Path) -> tuple[str, ...]:
    """Return the wnids of the validation images; position i is for ILSVRC2012_val_{i + 1:08}.

    `devkit` is the archive or the folder. Raises UserError when it cannot be read, is incomplete
    or damaged.
    """
    meta, truth = _files(devkit)
    wnid_of_id = _wnid_of_id(devkit, meta)
    wnids = []
    for number, line in enumerate(truth.decode(errors="replace").splitlines(), start=1):
        text = line.strip()
        if not text.isdecimal() or int(text) not in wnid_of_id:
            raise UserError(
                f"Line {number} of {_TRUTH} in {devkit} is {text[:20]!r}, not one of the "
                f"{len(wnid_of_id)} ILSVRC2012_IDs of {_META}.",
                _REMEDY,
            )
        wnids.append(wnid_of_id[int(text)])
    return tuple(wnids)


def refuse_short_truth(devkit: Path, lines: int, beyond: int, highest: int) -> None:
    """Raise UserError if `beyond` validation images have numbers above the number of lines."""
    if beyond:
        images = (
            "1 validation image has a number"
            if beyond == 1
            else (f"{beyond:,} validation images have numbers")
        )
        raise UserError(
            f"{_TRUTH} in {devkit} has {lines:,} lines, but {images} beyond that, up to {highest}.",
            _REMEDY,
        )


def _files(devkit: Path) -> tuple[bytes, bytes]:
    """Return the bytes of meta.mat and of the ground truth."""
    try:
        refuse_special(devkit)
        found = _in_folder(devkit) if devkit.is_dir() else _in_archive(devkit)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"The devkit {devkit} is damaged ({error}).", _REMEDY) from None
    except OSError as error:
        raise UserError(
            f"The devkit {devkit} cannot be read: {error.strerror or error}.", _REMEDY
        ) from None
    missing = [name for name in (_META, _TRUTH) if name not in found]
    if missing:
        raise UserError(f"The devkit {devkit} has no {' and no '.join(missing)}.", _REMEDY)
    return found[_META], found[_TRUTH]


def _in_folder(devkit: Path) -> dict[str, bytes]:
    roots: Iterable[Path] = (devkit, devkit / DEVKIT_NAMES[0])
    root = next((root for root in roots if (root / _META).is_file()), devkit)
    return {name: (root / name).read_bytes() for name in (_META, _TRUTH) if (root / name).is_file()}


def _in_archive(devkit: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(devkit) as tar:
        for member in tar:
            for name in (_META, _TRUTH):
                if f"/{member.name}".endswith(f"/{name}") and (file := tar.extractfile(member)):
                    found[name] = file.read()
    return found


def _wnid_of_id(devkit: Path, meta: bytes) -> dict[int, str]:
    from scipy.io import loadmat  # takes a while to import, and most sources need no devkit

    try:
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        # The inner nodes of the hierarchy follow the 1000 classes, with IDs of their own.
        leaves = synsets[synsets["num_children"] == 0]
        return {
            int(number): str(wnid)
            for number, wnid in zip(leaves["ILSVRC2012_ID"], leaves["WNID"], strict=True)
        }
    except Exception as error:  # scipy raises whatever the bytes lead it to
        raise UserError(f"{_META} in {devkit} is damaged ({error}).", _REMEDY) from None
