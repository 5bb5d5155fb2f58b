"""Speed of DALI's decoder in pipeline/decode/dali.py, with a chosen share for the hardware."""

import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.shards.write.worker_pool import usable_cores

try:
    import nvidia.dali.fn as fn
    import nvidia.dali.types as types
    from nvidia.dali import Pipeline, pipeline_def
except ImportError as error:
    raise UserError(
        f"NVIDIA DALI cannot be imported ({error}).",
        'Install it with: pip install "accelssl[cu13]" (or cu12); it runs without a GPU too.',
    ) from error

BATCH = 128


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(source: Iterator[Any], hardware_load: float | None) -> Any:
    jpegs = fn.external_source(source=source, batch=True, no_copy=True)
    options: dict[str, Any] = {"output_type": types.RGB, "adjust_orientation": False}
    if hardware_load is None:
        return fn.decoders.image(jpegs, device="cpu", **options)
    return fn.decoders.image(jpegs, device="mixed", hw_decoder_load=hardware_load, **options)


def images_per_s(
    jpegs: Sequence[NDArray[np.uint8]],
    device: torch.device,
    hardware_load: float,
    seconds: float,
) -> float:
    """Measure images decoded per second, for about `seconds` after a warm-up.

    `hardware_load` is the share given to the hardware decoder, 0 to 1; on the CPU it has no
    meaning. `jpegs` are taken in turn, BATCH at a time.
    """
    on_gpu = device.type == "cuda"
    forever = cycle(jpegs)
    batches = cycle([[next(forever) for _ in range(BATCH)] for _ in range(4)])
    pipeline: Pipeline = _graph(
        source=batches,
        hardware_load=hardware_load if on_gpu else None,
        batch_size=BATCH,
        num_threads=usable_cores(),
        device_id=(device.index or 0) if on_gpu else None,
        prefetch_queue_depth=2,
    )
    # What was worked ahead of the clock must not count: more batches than are ahead go first.
    for _ in range(4 if on_gpu else 1):
        pipeline.run()
    _wait(device)
    images, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < seconds:
        pipeline.run()
        images += BATCH
    _wait(device)
    return images / (time.perf_counter() - started_s)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
