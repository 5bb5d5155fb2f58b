"""The DALI graph: decode once, cut one window per view. The only file that imports nvidia.dali.

The same graph runs on the CPU and on a GPU. DALI draws nothing at random: windows come in with the
bytes, because DALI's generators are keyed by the place in a batch and not by the sample.
"""

import io
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.feed import Encoded
from accelssl.pipeline.shards import Split

try:
    import nvidia.dali.fn as fn
    import nvidia.dali.types as types
    from nvidia.dali import Pipeline, pipeline_def
except ImportError as error:
    raise UserError(
        f"NVIDIA DALI cannot be imported ({error}).",
        'Install it with: pip install "accelssl[cu13]" (or cu12); it runs without a GPU too.',
    ) from error


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(source: Iterator[Any], sizes: Sequence[int], on_gpu: bool) -> Any:
    jpegs, *windows = fn.external_source(
        source=source, num_outputs=1 + 2 * len(sizes), batch=True, no_copy=True
    )
    images = fn.decoders.image(
        jpegs,
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB,
        adjust_orientation=False,
    )
    return tuple(
        fn.resize(
            images,
            size=(size, size),
            roi_start=windows[2 * view],
            roi_end=windows[2 * view + 1],
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            dtype=types.UINT8,
        )
        for view, size in enumerate(sizes)
    )


class CropStream:
    """Iterates (batch, crops): for each view a uint8 tensor crops_NHWC on `device`.

    split names a broken image in errors; sizes are the views' crop sides in pixels; batch is the
    largest N. Ends when `batches` ends.
    """

    def __init__(
        self,
        split: Split,
        batches: Iterator[Encoded],
        sizes: Sequence[int],
        batch: int,
        device: torch.device,
        threads: int,
    ) -> None:
        self._split, self._batches = split, batches
        # What DALI may still read without copying, oldest first.
        self._in_flight: deque[tuple[Encoded, list[Any]]] = deque()
        self._device, on_gpu = device, device.type == "cuda"
        self._pipeline: Pipeline = _graph(
            source=self._feed(),
            sizes=tuple(sizes),
            on_gpu=on_gpu,
            batch_size=batch,
            num_threads=threads,
            device_id=(device.index or 0) if on_gpu else None,
            prefetch_queue_depth=2,
        )

    def _feed(self) -> Iterator[tuple[Any, ...]]:
        for encoded in self._batches:
            corners = (part for w in encoded.windows for part in (w[:, :2], w[:, 2:]))
            inputs = [encoded.jpegs, *map(np.ascontiguousarray, corners)]
            self._in_flight.append((encoded, inputs))
            yield tuple(inputs)

    def __iter__(self) -> Iterator[tuple[Encoded, tuple[Tensor, ...]]]:
        return self

    def __next__(self) -> tuple[Encoded, tuple[Tensor, ...]]:
        try:
            # On a GPU the crops are ready, and later freed, in the order of torch's stream.
            on_gpu = self._device.type == "cuda"
            stream = torch.cuda.current_stream(self._device) if on_gpu else None
            outputs = self._pipeline.run(stream)
        except RuntimeError as error:
            raise self._name_the_broken_image(error) from error
        crops = tuple(torch.utils.dlpack.from_dlpack(out.as_tensor()) for out in outputs)
        encoded, _ = self._in_flight.popleft()
        return encoded, crops

    def _name_the_broken_image(self, error: RuntimeError) -> Exception:
        for encoded, _ in self._in_flight:
            for sample, jpeg in zip(encoded.plan.samples_N.tolist(), encoded.jpegs, strict=True):
                try:
                    Image.open(io.BytesIO(jpeg.tobytes())).convert("RGB").load()
                except Exception as reason:
                    return UserError(
                        f"{self._split.describe(sample)} cannot be decoded ({reason}).",
                        "Write the set anew with accelssl shard-imagenet: it leaves such out.",
                    )
        return error
