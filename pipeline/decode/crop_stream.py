"""Crops of decoded images: by the crop kernel on a GPU, by DALI's resize on a CPU."""

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from accelssl.pipeline.crop.crop import crop, unavailable
from accelssl.pipeline.crop.images import Images
from accelssl.pipeline.decode.dali import CropStream, DecoderStream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.read.feed import Encoded
from accelssl.shards.shard_set import Split

_log = logging.getLogger(__name__)


class Crops(Protocol):
    """Iterator over (batch, crops): for each view a uint8 tensor crops_NHWC."""

    def __next__(self) -> tuple[Encoded, tuple[Tensor, ...]]: ...
    def close(self) -> None: ...


def crop_stream(
    split: Split,
    batches: Iterator[Encoded],
    sizes: Sequence[int],
    batch: int,
    device: torch.device,
    decoding: Decoding,
    is_cubic: bool = False,
) -> Crops:
    """Return KernelCrops on a GPU and CropStream otherwise. Both agree to one level.

    Arguments as for CropStream. Bicubic crops and GPUs on which the kernel does not compile also
    use CropStream.
    """
    if device.type == "cuda" and not is_cubic:
        reason = unavailable(device)
        if reason is None:
            return KernelCrops(DecoderStream(split, batches, batch, device, decoding), sizes)
        _log.warning(
            "The crop kernel is unavailable (%s). DALI's resize is used, which is slower.", reason
        )
    return CropStream(split, batches, sizes, batch, device, decoding, is_cubic)


class KernelCrops:
    """Crops stream that uses the crop kernel, with one launch for all views of a size."""

    def __init__(self, decoder: DecoderStream, sizes: Sequence[int]) -> None:
        self._decoder, self._sizes = decoder, tuple(sizes)

    def __iter__(self) -> Iterator[tuple[Encoded, tuple[Tensor, ...]]]:
        return self

    def __next__(self) -> tuple[Encoded, tuple[Tensor, ...]]:
        encoded, decoded = next(self._decoder)
        images = Images.of_dali(decoded, self._decoder.device)
        crops: dict[int, Tensor] = {}
        for size in dict.fromkeys(self._sizes):
            views = [view for view, side in enumerate(self._sizes) if side == size]
            made = crop(images, [encoded.drawn.windows[view] for view in views], size)
            crops |= dict(zip(views, made, strict=True))
        return encoded, tuple(crops[view] for view in range(len(self._sizes)))

    def close(self) -> None:
        """Free the decoders and close the batches."""
        self._decoder.close()
