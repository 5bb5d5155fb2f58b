"""The DALI graph: decode once, cut one window per view. The only file that imports nvidia.dali.

The same graph runs on the CPU and on a GPU. DALI draws nothing at random: windows come in with the
bytes, because DALI's generators are keyed by the place in a batch and not by the sample.
"""

import io
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.decoding import Decoding
from accelssl.pipeline.feed import Encoded, EncodedBatches
from accelssl.pipeline.shards import Split

try:
    import nvidia.dali.fn as fn
    import nvidia.dali.types as types
    from nvidia.dali import Pipeline, pipeline_def
    from nvidia.dali.tensors import TensorCPU, TensorListCPU
except ImportError as error:
    raise UserError(
        f"NVIDIA DALI cannot be imported ({error}).",
        'Install it with: pip install "accelssl[cu13]" (or cu12); it runs without a GPU too.',
    ) from error


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(
    source: Iterator[Any],
    sizes: Sequence[int],
    on_gpu: bool,
    decoding: Decoding,
    is_cubic: bool = False,
) -> Any:
    jpegs, *windows = fn.external_source(
        source=source, num_outputs=1 + 2 * len(sizes), batch=True, no_copy=True
    )
    images = fn.decoders.image(
        jpegs,
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB,
        adjust_orientation=False,
        **(_on_gpu(decoding) if on_gpu else {}),
    )
    if not sizes:
        return images
    return tuple(
        fn.resize(
            images,
            size=(size, size),
            roi_start=windows[2 * view],
            roi_end=windows[2 * view + 1],
            interp_type=types.INTERP_CUBIC if is_cubic else types.INTERP_LINEAR,
            antialias=True,
            dtype=types.UINT8,
        )
        for view, size in enumerate(sizes)
    )


def _on_gpu(decoding: Decoding) -> dict[str, Any]:
    options: dict[str, Any] = {"hw_decoder_load": decoding.hw_load}
    if decoding.preallocated_px:
        side = decoding.preallocated_px
        options |= {"preallocate_width_hint": side, "preallocate_height_hint": side}
    return options


def _feed(
    batches: Iterator[Encoded], in_flight: "deque[tuple[Encoded, list[Any]]]"
) -> Generator[tuple[Any, ...]]:
    for encoded in batches:
        corners = (part for w in encoded.windows for part in (w[:, :2], w[:, 2:]))
        # As a list of DALI's own: it looks at each array of a plain list, three times.
        each = [TensorCPU(jpeg) for jpeg in encoded.jpegs]
        jpegs = TensorListCPU(each, contiguous=False)  # type: ignore[call-overload]
        inputs = [jpegs, *map(np.ascontiguousarray, corners)]
        in_flight.append((encoded, inputs))
        yield tuple(inputs)


class _Stream:
    """Runs the graph: what DecoderStream and CropStream have in common."""

    def __init__(
        self,
        split: Split,
        batches: Iterator[Encoded],
        sizes: Sequence[int],
        batch: int,
        device: torch.device,
        decoding: Decoding,
        is_cubic: bool = False,
    ) -> None:
        self.device = device
        self._split, self._batches = split, batches
        # What DALI may still read without copying, oldest first.
        self._in_flight: deque[tuple[Encoded, list[Any]]] = deque()
        self._handed_out: tuple[Encoded, list[Any]] | None = None
        self._source = _feed(batches, self._in_flight)
        on_gpu = device.type == "cuda"
        self._pipeline: Pipeline | None = _graph(
            source=self._source,
            sizes=tuple(sizes),
            on_gpu=on_gpu,
            decoding=decoding,
            is_cubic=is_cubic,
            batch_size=batch,
            num_threads=decoding.threads,
            device_id=(device.index or 0) if on_gpu else None,
            prefetch_queue_depth=decoding.prefetch,
        )

    def close(self) -> None:
        """Give back the decoder, and close `batches`."""
        self._pipeline = self._handed_out = None  # it is freed by the collector: it knows itself
        self._source.close()
        self._in_flight.clear()
        if isinstance(self._batches, EncodedBatches):
            self._batches.close()

    def _run(self) -> tuple[Encoded, Any]:
        """A batch, and the outputs of the graph for it. StopIteration at the end."""
        if self._pipeline is None:
            raise StopIteration
        try:
            # On a GPU the outputs are ready, and later freed, in the order of torch's stream.
            on_gpu = self.device.type == "cuda"
            stream = torch.cuda.current_stream(self.device) if on_gpu else None
            outputs = self._pipeline.run(stream)
        except RuntimeError as error:
            raise self._name_the_broken_image(error) from error
        # Bytes stay for a batch longer than DALI says that it needs them.
        self._handed_out = self._in_flight.popleft()
        return self._handed_out[0], outputs

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


class DecoderStream(_Stream):
    """Iterates (batch, images): DALI's TensorList of N decoded images on `device`, uint8 HWC RGB.

    split names a broken image in errors; batch is the largest N. Ends when `batches` ends.
    """

    def __init__(
        self,
        split: Split,
        batches: Iterator[Encoded],
        batch: int,
        device: torch.device,
        decoding: Decoding,
    ) -> None:
        super().__init__(split, batches, (), batch, device, decoding)

    def __iter__(self) -> Iterator[tuple[Encoded, Any]]:
        return self

    def __next__(self) -> tuple[Encoded, Any]:
        encoded, (images,) = self._run()
        return encoded, images


class CropStream(_Stream):
    """Iterates (batch, crops): for each view a uint8 tensor crops_NHWC on `device`.

    sizes are the views' crop sides in pixels; is_cubic: interpolated by cubics (a = -1/2, Pillow's
    bicubic) instead of lines; the rest as for DecoderStream.
    """

    def __iter__(self) -> Iterator[tuple[Encoded, tuple[Tensor, ...]]]:
        return self

    def __next__(self) -> tuple[Encoded, tuple[Tensor, ...]]:
        encoded, outputs = self._run()
        return encoded, tuple(torch.utils.dlpack.from_dlpack(out.as_tensor()) for out in outputs)
