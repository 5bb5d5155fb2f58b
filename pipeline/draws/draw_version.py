"""What stands behind (seed, epoch, sample) besides the images: our draws, and who decodes."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata

DRAW_VERSION = 1
"""Of all that is drawn: orders, windows, augmentations, drops. Raise it whenever the same seed,
epoch, sample and view draw something else, so that no run goes on in mid-epoch with other draws."""

_DECODERS = {
    "DALI": re.compile(r"nvidia-dali-(nightly-|weekly-)?cuda\d+"),
    "nvImageCodec": re.compile(r"nvidia-nvimgcodec-cu\d+"),
}


@cache  # all that is installed is looked through
def decoder_versions() -> Mapping[str, str]:
    """The installed versions of what turns bytes into pixels, whatever CUDA they are built for."""
    found: dict[str, set[str]] = {name: set() for name in _DECODERS}
    for distribution in metadata.distributions():
        package = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        for name, pattern in _DECODERS.items():
            if pattern.fullmatch(package):
                found[name].add(distribution.version)
    return {name: " and ".join(sorted(versions)) or "none" for name, versions in found.items()}
