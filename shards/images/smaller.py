"""Shrinking of pictures above the limits on their sides."""

from PIL import Image

# In the manifest, "longer side over 500": the limit that decides a picture's new size.
_LONGER, _SHORTER = "longer side over ", "shorter side over "

# Without chroma subsampling. At 100, many pictures would grow in bytes although they shrink; what
# less than 95, or subsampling, saves and costs is in benchmarks/results/short_side_cpu_202611.md.
SMALLER_QUALITY = 95


def why_smaller(size: tuple[int, int], max_side: int | None, short_side: int | None) -> str | None:
    """Return the reason to shrink a picture of that (width, height), or None.

    Limits are in pixels: `max_side` on the longer side, `short_side` on the shorter one.
    """
    by_longer = max(size) / (max_side or max(size))
    by_shorter = min(size) / (short_side or min(size))
    if max(by_longer, by_shorter) <= 1:
        return None
    return f"{_LONGER}{max_side}" if by_longer >= by_shorter else f"{_SHORTER}{short_side}"


def is_made_smaller(reason: str) -> bool:
    """Return True if a reason for transcoding is one of `why_smaller`."""
    return reason.startswith((_LONGER, _SHORTER))


def make_smaller(picture: Image.Image, max_side: int | None, short_side: int | None) -> None:
    """Shrink a decoded picture that `why_smaller` names, in place, to keep both limits.

    The side that decides is as long as its limit, and the other follows the aspect as closely as
    whole pixels allow.
    """
    longer = max_side or max(picture.size)
    shorter = min(short_side or longer, longer)
    box = (longer, shorter) if picture.width > picture.height else (shorter, longer)
    # Without the gap, which lets a box filter do most of the shrinking.
    picture.thumbnail(box, Image.Resampling.LANCZOS, reducing_gap=None)
