"""What stands behind (seed, epoch, sample) besides the images: our draws, and who decodes."""

import re
from functools import cache
from importlib import metadata

STREAM_VERSION = 1
"""Of all that is drawn: orders, windows, augmentations, drops. Raise it whenever the same seed,
epoch, sample and view draw something else, so that no run goes on in mid-epoch with other draws."""

_DECODERS = {
    "DALI": re.compile(r"nvidia-dali-(nightly-|weekly-)?cuda\d+"),
    "nvImageCodec": re.compile(r"nvidia-nvimgcodec-cu\d+"),
}


def decoder_versions() -> dict[str, str]:
    """The installed versions of what turns bytes into pixels, whatever CUDA they are built for."""
    return dict(_decoder_versions())


@cache  # all that is installed is looked through
def _decoder_versions() -> tuple[tuple[str, str], ...]:
    found: dict[str, set[str]] = {name: set() for name in _DECODERS}
    for distribution in metadata.distributions():
        package = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        for name, pattern in _DECODERS.items():
            if pattern.fullmatch(package):
                found[name].add(distribution.version)
    return tuple((name, " and ".join(sorted(each)) or "none") for name, each in found.items())
