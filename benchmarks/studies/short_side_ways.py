"""Ways to make a picture smaller, compared with the command's by studies/short_side.py."""

import io
from dataclasses import dataclass

from PIL import Image

LANCZOS, BICUBIC = Image.Resampling.LANCZOS, Image.Resampling.BICUBIC


@dataclass(frozen=True)
class Way:
    """A way to shrink and to encode. quality 0: a PNG, which loses nothing."""

    name: str
    filter: Image.Resampling = LANCZOS
    gap: float | None = None
    quality: int = 95
    subsampling: int = 0

    def applied(self, data: bytes, size: tuple[int, int]) -> bytes:
        """A picture's file, made smaller to (width, height)."""
        with Image.open(io.BytesIO(data)) as image:
            if self.gap is None:
                image.load()  # else Pillow may have libjpeg decode at a half or a quarter
            image.thumbnail(size, self.filter, reducing_gap=self.gap)
            picture = image.convert("L" if image.mode == "L" else "RGB")
        picture.info.clear()  # Pillow would store a colour profile
        if picture.size != size:
            raise ValueError(f"{picture.size} is not {size}: the sets are of other pictures")
        buffer = io.BytesIO()
        if self.quality:
            picture.save(buffer, "JPEG", quality=self.quality, subsampling=self.subsampling)
        else:
            picture.save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()


WAYS = (
    Way("Lanczos, quality 95, 4:4:4: the command's"),
    Way("Lanczos, nothing lost in encoding", quality=0),
    Way("Lanczos, 95, 4:2:0", subsampling=2),
    Way("Lanczos, 92, 4:4:4", quality=92),
    Way("Lanczos, 90, 4:4:4", quality=90),
    Way("Lanczos, 90, 4:2:0", quality=90, subsampling=2),
    Way("bicubic, 95, 4:4:4", filter=BICUBIC),
    Way("Lanczos after draft mode and boxes (reducing_gap=2), 95, 4:4:4", gap=2.0),
)
