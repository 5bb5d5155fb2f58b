"""DALI graph: decode each image once, cut one window per view. Only this file imports DALI.

The same graph runs on a CPU and on a GPU. DALI draws nothing at random: the windows are inputs,
because DALI keys its generators by the position in a batch and not by the sample.
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
        'Install it with: pip install "accelssl[cu13]" (or cu12); DALI also runs without a GPU.',
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
    """Yield the graph's inputs for each batch: batch number, JPEGs, corners of `views` windows.

    Sets has_ended after the last batch, but not if an exception ends the generator.
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
    # DALI inspects each array of a plain list three times, but not the arrays of its own list.
    each = [TensorCPU(jpeg) for jpeg in jpegs]
    return TensorListCPU(each, contiguous=False)  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class _InFlight:
    """Batch given to DALI, its number, and the inputs that DALI may still read without a copy."""

    number: int
    encoded: Encoded
    fed: tuple[Any, ...]


class _Stream:
    """Base class of DecoderStream and CropStream: runs the graph.

    Several `decoders` take batches in turn, each with a separate DALI pipeline.
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
        self._next = 0  # number of the next batch to return
        self._made: dict[int, tuple[int, list[Any]]] = {}
        self._leases = OutputLeases()
        self._failure: Exception | None = None

    def close(self) -> None:
        """Free the decoders and close `batches`."""
        self._handed_out = None
        self._leases.close()
        self._pipelines.clear()  # the garbage collector frees pipelines: they refer to themselves
        self._made.clear()
        self._source.close()
        self._in_flight.clear()
        if isinstance(self._batches, EncodedBatches):
            self._batches.close()

    def _run(self) -> tuple[Encoded, list[Any]]:
        """Return the next batch and the graph's outputs for it. Raise StopIteration at the end.

        On a GPU the outputs are valid until the next call, in the order of torch's current stream.
        The batch numbers match outputs to batches: Python raises an interrupt as soon as DALI has
        returned, and the interrupt loses these outputs and their batch.
        """
        self._leases.end_last()
        while not self._is_made(self._next):
            self._next += 1
        while self._in_flight[0].number < self._next:
            self._in_flight.popleft()
        # Keep the JPEGs one batch longer than DALI reports to need them.
        self._handed_out = self._in_flight.popleft()
        made = self._made.pop(self._next % len(self._pipelines))[1]
        self._next += 1
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            self._leases.add((made, self._handed_out), stream)  # and their JPEGs
        return self._handed_out.encoded, made

    def _is_made(self, number: int) -> bool:
        """Wait until batch `number` is decoded. Return False if an interrupt has lost the batch."""
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
        """Return the number of the next batch of decoder `place`, and its outputs."""
        if self._failure:
            raise self._failure
        try:
            # With torch's stream, the outputs are ready in the order of this stream.
            on_gpu = self.device.type == "cuda"
            stream = torch.cuda.current_stream(self.device) if on_gpu else None
            numbers, *outputs = self._pipelines[place].run(stream)
        except StopIteration:
            if self._has_ended.is_set():
                raise
            self._failure = RuntimeError(
                "The stream was interrupted while it fed the decoder. Create a new stream."
            )
            raise self._failure from None
        except Exception as error:  # after an error DALI does not return the next batch
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
                        "Write the set again with accelssl shard-imagenet: it omits such images.",
                    )
        return error


class DecoderStream(_Stream):
    """Iterator over (batch, images): a DALI TensorList of N decoded images, uint8 HWC RGB.

    The images are on `device`. On a GPU they are valid until the next call of `next`, for kernels
    launched on the stream that was current in this call. `split` names a broken image in errors;
    `batch` is the largest N. Ends when `batches` ends.
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
    """Iterator over (batch, crops): for each view a uint8 tensor crops_NHWC on `device`.

    sizes: the views' crop sides in pixels. is_cubic: bicubic interpolation (a = -1/2, as Pillow)
    instead of linear. Other arguments as for DecoderStream, but with one decoder.
    """

    def __iter__(self) -> Iterator[tuple[Encoded, tuple[Tensor, ...]]]:
        return self

    def __next__(self) -> tuple[Encoded, tuple[Tensor, ...]]:
        encoded, outputs = self._run()
        crops = (torch.utils.dlpack.from_dlpack(out.as_tensor()) for out in outputs)
        # On a GPU the outputs are only leased.
        return encoded, tuple(each.clone() if each.is_cuda else each for each in crops)
