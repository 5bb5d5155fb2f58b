"""Names in a tar that the webdataset library reads differently from other readers."""

import re

from accelssl.shards.tars.tar_samples import key_and_extension

# It passes over these, images or not.
_META = re.compile(r"__[^/]*__($|/)")
# It keeps what it knows of a sample, such as its key, among the members under names like this: a
# member of that name stops it, or makes it drop the sample.
_RESERVED = re.compile(r"__.*__", re.DOTALL)


def is_passed_over(path: str) -> bool:
    """Return True if webdataset takes the name for metadata."""
    return _META.match(path) is not None


def why_taken_otherwise(path: str) -> str | None:
    """Describe how webdataset reads a file's name differently; None where all readers agree.

    Names of metadata are not looked at; see `is_passed_over`.
    """
    name = key_and_extension(path)
    if name is None:
        is_upset = _has_key(path) and not is_passed_over(path)
        return "webdataset takes a hidden file in a folder for a sample" if is_upset else None
    if not _has_key(path):
        return "webdataset passes over names with a dot and a line end in their folders"
    if _RESERVED.fullmatch(name[1]):
        return "webdataset keeps extensions like this for itself"
    return None


def _has_key(path: str) -> bool:
    """Return True if webdataset finds a key in a path: all up to the base name's first dot.

    Before that dot must come a character without a dot between, and not merely within the base
    name: the search begins at any slash of the first line, or at the front. So the key of "a/.b" is
    "a/", and "v1.0/.b" has none.
    """
    dot = path.find(".", path.rfind("/") + 1)
    if dot < 1:
        return False
    first_line = path[: dot - 1].partition("\n")[0]
    return "." not in path[first_line.rfind("/") + 1 : dot]
