"""Pictures for the report: augmented crops cut into patches, dropped patches left blank."""

import base64
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

SIDE = 168  # pixels of a drawn crop, rounded so that a patch has whole pixels
GAP = 1  # pixels between patches
BETWEEN_VIEWS = 8
BLANK, PAPER = (226, 230, 235), (255, 255, 255)
LIMIT_BYTES = 700_000  # of all pictures of a page, before base64 adds a third
# Tried in order until the limit holds: pictures drawn, quality of the encoder.
EFFORTS = ((8, 88), (8, 75), (8, 60), (6, 50), (4, 50), (2, 40), (1, 30))


@dataclass(frozen=True)
class PictureBlock:
    """One row of pictures: a title, and each picture (view 1 above view 2) as a data URI."""

    title: str
    images: tuple[str, ...]


@dataclass(frozen=True)
class _Stage:
    """A row to draw. keep_VNL: indices of the kept patches of p px, or None for whole crops."""

    title: str
    p: int
    keep_VNL: npt.NDArray[np.int64] | None


def picture_blocks(path: Path) -> tuple[PictureBlock, ...]:
    """Return the crops of pictures.npz, whole and then as each stage compresses them; below 1 MB.

    `crops` is uint8 (V, N, H, W, 3), `p` (stages,), `keep_<k>` int (V, N, L) for stage k, filled
    with -1 for views that keep fewer. Raise ValueError for a file with other content.
    """
    crops_VNHWC, stages = _read(path)
    blocks: tuple[PictureBlock, ...] = ()
    for pictures, quality in EFFORTS:
        few = crops_VNHWC[:, :pictures]
        encoded = [
            (_title(stage, few, crops_VNHWC), [_encoded(i, quality) for i in _drawn(few, stage)])
            for stage in stages
        ]
        blocks = tuple(PictureBlock(title, tuple(map(_data_uri, row))) for title, row in encoded)
        if sum(len(image) for _, row in encoded for image in row) <= LIMIT_BYTES:
            break
    return blocks


def _read(path: Path) -> tuple[Pixels, list[_Stage]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"it is not a readable npz file ({error})") from error
    missing = {"crops", "p"} - set(arrays)
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    crops = arrays["crops"]
    if crops.dtype != np.uint8 or crops.ndim != 5 or crops.shape[-1] != 3 or not crops.size:
        raise ValueError(f"its crops are {crops.dtype} of shape {crops.shape}")
    stages = [_Stage("The augmented crops, before compression", min(crops.shape[2:4]), None)]
    for k, p in enumerate(arrays["p"].reshape(-1).tolist()):
        stages.append(_stage(crops, int(p), arrays.get(f"keep_{k}"), k))
    return crops, stages


def _stage(crops: Pixels, p: int, keep: npt.NDArray[np.int64] | None, k: int) -> _Stage:
    views, pictures, height, width, _ = crops.shape
    patches = (height // p) * (width // p) if p > 0 else 0
    fits = keep is not None and keep.ndim == 3 and keep.shape[:2] == (views, pictures)
    if keep is None or not fits or not np.issubdtype(keep.dtype, np.integer):
        raise ValueError(f"keep_{k} has no integers of shape ({views}, {pictures}, L)")
    if keep.size and not -1 <= int(keep.min()) <= int(keep.max()) < patches:
        raise ValueError(f"keep_{k} names a patch outside the {patches} of a crop")
    counts = (keep >= 0).sum(axis=2).max(axis=1, initial=0).tolist()
    kept = " and ".join(map(str, dict.fromkeys(counts)))
    title = f"Stage {k + 1}: patches of {p} pixels, {kept} of {patches} kept"
    return _Stage(title, p, keep)


def _title(stage: _Stage, shown_VNHWC: Pixels, crops_VNHWC: Pixels) -> str:
    shown, there = shown_VNHWC.shape[1], crops_VNHWC.shape[1]
    return stage.title if shown == there else f"{stage.title} ({shown} of {there} pictures)"


def _drawn(crops_VNHWC: Pixels, stage: _Stage) -> Iterator[Pixels]:
    """Yield each picture with its views one above the other."""
    for n in range(crops_VNHWC.shape[1]):
        drawn = [
            _tiled(crop, stage.p, None if stage.keep_VNL is None else stage.keep_VNL[v, n])
            for v, crop in enumerate(crops_VNHWC[:, n])
        ]
        between = np.full((BETWEEN_VIEWS, drawn[0].shape[1], 3), PAPER, np.uint8)
        rows = [part for view in drawn for part in (view, between)]
        yield np.concatenate(rows[:-1])


def _tiled(crop_HWC: Pixels, p: int, keep: npt.NDArray[np.int64] | None) -> Pixels:
    """Return the crop in patches with gaps, those not in `keep` blank. With None return the
    crop."""
    if keep is None:
        return np.asarray(Image.fromarray(crop_HWC).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    rows, columns = crop_HWC.shape[0] // p, crop_HWC.shape[1] // p
    side = max(2, round(SIDE / max(rows, columns)) - GAP)
    covered = Image.fromarray(crop_HWC[: rows * p, : columns * p])
    scaled = covered.resize((columns * side, rows * side), Image.Resampling.LANCZOS)
    tiles = np.asarray(scaled).reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    shown = np.zeros(rows * columns, dtype=bool)
    shown[keep[keep >= 0]] = True
    tiles = np.where(shown.reshape(rows, columns, 1, 1, 1), tiles, np.array(BLANK, np.uint8))
    canvas = np.full((rows, side + GAP, columns, side + GAP, 3), PAPER, np.uint8)
    canvas[:, :side, :, :side] = tiles.swapaxes(1, 2)
    flat = canvas.reshape(rows * (side + GAP), columns * (side + GAP), 3)
    return flat[:-GAP, :-GAP]


def _encoded(image: Pixels, quality: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def _data_uri(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
