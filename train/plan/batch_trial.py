"""Time a step with a batch on this machine, and check that it fits the memory."""

import gc
import time
from functools import partial

import torch

from accelssl.model.gather import alone
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.schedule import Stage
from accelssl.train.out_of_memory import is_out_of_memory
from accelssl.train.plan.batch_choice import Trial
from accelssl.train.plan.probe_speed import (
    CPU_WARM_UP,
    GPU_WARM_UP,
    new_step,
    seconds_a_call,
    synthetic_batch,
    wait_for,
)

SPARE = 0.1
"""Share of a GPU's memory reserved for the loader and for communication between ranks."""


def try_batch(config: TrainConfig, stage: Stage, batch: int, device: torch.device) -> Trial:
    """Train for some seconds with `batch` images on this rank, without communication.

    A separate network with learning rate 0 is used. Its memory, compiled code and CUDA graph are
    freed afterwards. A batch does not fit if it fails or leaves less than SPARE of the memory.
    """
    began_s = time.perf_counter()
    rate, memory_bytes = None, None
    try:
        with alone():
            step_s, memory_bytes = _measured(config, stage, batch, device)
        rate = None if step_s is None else batch * config.sample_cost(stage) / step_s
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    finally:
        _free(device)  # here, because the exception kept the tensors of its frames alive
    return Trial(batch, rate, memory_bytes, time.perf_counter() - began_s)


def _measured(
    config: TrainConfig, stage: Stage, batch: int, device: torch.device
) -> tuple[float | None, int | None]:
    """Return the seconds of a step (None if it takes too much memory) and the memory."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    step = partial(new_step(config, device), synthetic_batch(config, stage, batch, device), 0.0)
    step()
    wait_for(device)
    if not _is_spared(device):  # capturing it would fail half-way
        return None, _memory_bytes(device)
    step_s = seconds_a_call(step, (GPU_WARM_UP if on_gpu else CPU_WARM_UP) - 1, device)
    return (step_s if _is_spared(device) else None), _memory_bytes(device)


def _is_spared(device: torch.device) -> bool:
    used_bytes = _memory_bytes(device)
    if used_bytes is None:
        return True
    _, total_bytes = torch.cuda.mem_get_info(device)
    return used_bytes <= (1 - SPARE) * total_bytes


def _memory_bytes(device: torch.device) -> int | None:
    """Return torch's peak since the last reset plus all memory held outside of torch; None on a
    CPU."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    return torch.cuda.max_memory_reserved(device) + max(0, others_bytes)


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        wait_for(device)
        torch.cuda.empty_cache()
        torch._dynamo.reset()
