"""The DALI graph: decode once, cut one window per view. The only file that imports nvidia.dali.

The same graph runs on the CPU and on a GPU. DALI draws nothing at random: windows come in with the
bytes, because DALI's generators are keyed by the place in a batch and not by the sample.
"""

import io
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from accelssl.errors import UserError
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.decode.output_leases import OutputLeases
from accelssl.pipeline.decode.round_robin import round_robin
from accelssl.pipeline.read.feed import Encoded, EncodedBatches
from accelssl.shards.shard_set import Split

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
    numbers, jpegs, *windows = fn.external_source(
        source=source, num_outputs=2 + 2 * len(sizes), batch=True, no_copy=True
    )
    images = fn.decoders.image(
        jpegs,
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB,
        adjust_orientation=False,
        **(_on_gpu(decoding) if on_gpu else {}),
    )
    if not sizes:
        return numbers, images
    crops = (
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
    return numbers, *crops


def _on_gpu(decoding: Decoding) -> dict[str, Any]:
    options: dict[str, Any] = {"hw_decoder_load": decoding.hw_load}
    if decoding.preallocated_px:
        side = decoding.preallocated_px
        options |= {"preallocate_width_hint": side, "preallocate_height_hint": side}
    return options


def _feed(
    batches: Iterator[Encoded], views: int, in_flight: "deque[_InFlight]", has_ended: Event
) -> Generator[tuple[Any, ...]]:
    """What a decoder gets of each batch, with the windows of `views` views.

    has_ended is set when there are no more batches, not where an exception ends this.
    """
    for number, encoded in enumerate(batches):
        numbers = np.full((len(encoded.jpegs), 1), number)
        windows = encoded.drawn.windows[:views]
        corners = (np.ascontiguousarray(c) for w in windows for c in (w[:, :2], w[:, 2:]))
        fed = (numbers, _in_dalis_list(encoded.jpegs), *corners)
        in_flight.append(_InFlight(number, encoded, fed))
        yield fed
    has_ended.set()


def _in_dalis_list(jpegs: Sequence[Any]) -> Any:
    # As a list of DALI's own: it looks at each array of a plain list, three times.
    each = [TensorCPU(jpeg) for jpeg in jpegs]
    return TensorListCPU(each, contiguous=False)  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class _InFlight:
    """A batch, its number, and what was fed of it, which DALI may still read without copying."""

    number: int
    encoded: Encoded
    fed: tuple[Any, ...]


class _Stream:
    """Runs the graph: what DecoderStream and CropStream have in common.

    Several `decoders` take batches in turn, each in a pipeline of its own.
    """

    def __init__(
        self,
        split: Split,
        batches: Iterator[Encoded],
        sizes: Sequence[int],
        batch: int,
        device: torch.device,
        decoding: Decoding,
        is_cubic: bool = False,
        decoders: int = 1,
    ) -> None:
        self.device = device
        self._split, self._batches = split, batches
        self._in_flight: deque[_InFlight] = deque()  # oldest first
        self._handed_out: _InFlight | None = None
        self._has_ended = Event()
        self._source = _feed(batches, len(sizes), self._in_flight, self._has_ended)
        on_gpu = device.type == "cuda"
        self._pipelines: list[Pipeline] = [
            _graph(
                source=fed,
                sizes=tuple(sizes),
                on_gpu=on_gpu,
                decoding=decoding,
                is_cubic=is_cubic,
                batch_size=batch,
                num_threads=max(1, decoding.threads // decoders),
                device_id=(device.index or 0) if on_gpu else None,
                prefetch_queue_depth=decoding.prefetch,
            )
            for fed in round_robin(self._source, decoders)
        ]
        self._next = 0  # the number of the batch to hand out
        self._made: dict[int, tuple[int, list[Any]]] = {}
        self._leases = OutputLeases()
        self._failure: Exception | None = None

    def close(self) -> None:
        """Give back the decoders, and close `batches`."""
        self._handed_out = None
        self._leases.close()
        self._pipelines.clear()  # they are freed by the collector: they know themselves
        self._made.clear()
        self._source.close()
        self._in_flight.clear()
        if isinstance(self._batches, EncodedBatches):
            self._batches.close()

    def _run(self) -> tuple[Encoded, list[Any]]:
        """A batch, and the graph's outputs for it. StopIteration at the end.

        On a GPU the outputs are there until the next call, in the order of torch's current stream.
        Numbers tell whose outputs they are: an interrupt, which Python raises as soon as DALI
        has answered, costs what was just handed over, and with it that batch.
        """
        self._leases.end_last()
        while not self._is_made(self._next):
            self._next += 1
        while self._in_flight[0].number < self._next:
            self._in_flight.popleft()
        # Bytes stay for a batch longer than DALI says that it needs them.
        self._handed_out = self._in_flight.popleft()
        made = self._made.pop(self._next % len(self._pipelines))[1]
        self._next += 1
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            self._leases.add((made, self._handed_out), stream)  # also the bytes they are made of
        return self._handed_out.encoded, made

    def _is_made(self, number: int) -> bool:
        """Wait for the decoder whose turn a batch is. False if an interrupt has cost it."""
        if not self._pipelines:
            raise StopIteration
        place = number % len(self._pipelines)
        while place not in self._made or self._made[place][0] < number:
            try:
                self._made[place] = self._outputs_of(place)
            except StopIteration:
                if any(batch.number > number for batch in self._in_flight):
                    return False
                raise
        return self._made[place][0] == number

    def _outputs_of(self, place: int) -> tuple[int, list[Any]]:
        """What a decoder has next, and the number of its batch."""
        if self._failure:
            raise self._failure
        try:
            # On a GPU the outputs are ready in the order of torch's stream.
            on_gpu = self.device.type == "cuda"
            stream = torch.cuda.current_stream(self.device) if on_gpu else None
            numbers, *outputs = self._pipelines[place].run(stream)
        except StopIteration:
            if self._has_ended.is_set():
                raise
            self._failure = RuntimeError(
                "The stream was interrupted as it fed the decoder. Make another one."
            )
            raise self._failure from None
        except Exception as error:  # whatever DALI does afterwards, it is not the next batch
            is_dalis = isinstance(error, RuntimeError)
            self._failure = self._name_the_broken_image(error) if is_dalis else error
            if self._failure is error:
                raise
            raise self._failure from error
        return int(numbers.at(0)[0]), outputs

    def _name_the_broken_image(self, error: Exception) -> Exception:
        for encoded in (each.encoded for each in self._in_flight):
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
    """Iterates (batch, images): DALI's TensorList of the N decoded images on `device`, uint8 HWC
    RGB. On a GPU they are there until the next call, for what is launched before on the stream that
    was current in this one.

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
        super().__init__(split, batches, (), batch, device, decoding, decoders=decoding.decoders)

    def __iter__(self) -> Iterator[tuple[Encoded, Any]]:
        return self

    def __next__(self) -> tuple[Encoded, Any]:
        encoded, (images,) = self._run()
        return encoded, images


class CropStream(_Stream):
    """Iterates (batch, crops): for each view a uint8 tensor crops_NHWC on `device`. Decodes by one
    decoder alone.

    sizes are the views' crop sides in pixels; is_cubic: interpolated by cubics (a = -1/2, Pillow's
    bicubic) instead of lines; the rest as for DecoderStream.
    """

    def __iter__(self) -> Iterator[tuple[Encoded, tuple[Tensor, ...]]]:
        return self

    def __next__(self) -> tuple[Encoded, tuple[Tensor, ...]]:
        encoded, outputs = self._run()
        crops = (torch.utils.dlpack.from_dlpack(out.as_tensor()) for out in outputs)
        # A GPU's are only lent.
        return encoded, tuple(each.clone() if each.is_cuda else each for each in crops)
