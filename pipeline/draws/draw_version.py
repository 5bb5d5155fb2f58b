"""Versions of the draws and of the decoders, which a resumed run compares with its checkpoint."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata

DRAW_VERSION = 1
"""Version of all draws: orders, windows, augmentations and drops.

Raise the version if a change alters any draw of some seed, epoch, sample and view. A run then
cannot resume in the middle of an epoch with other draws.
"""

_DECODERS = {
    "DALI": re.compile(r"nvidia-dali-(nightly-|weekly-)?cuda\d+"),
    "nvImageCodec": re.compile(r"nvidia-nvimgcodec-cu\d+"),
}


@cache  # the search reads the metadata of all installed packages
def decoder_versions() -> Mapping[str, str]:
    """Return the installed versions of DALI and nvImageCodec, for any version of CUDA."""
    found: dict[str, set[str]] = {name: set() for name in _DECODERS}
    for distribution in metadata.distributions():
        package = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        for name, pattern in _DECODERS.items():
            if pattern.fullmatch(package):
                found[name].add(distribution.version)
    return {name: " and ".join(sorted(versions)) or "none" for name, versions in found.items()}
