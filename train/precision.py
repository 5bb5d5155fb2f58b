"""Choice of bf16 autocast: on GPUs that support bf16, and on CPUs whose matrix products gain."""

import time

import torch

from accelssl.errors import UserError

PRECISIONS = ("auto", "bf16", "fp32")
_GAIN = 1.3


def pick_precision(name: str, device: torch.device) -> str:
    """Return bf16 or fp32; auto depends on the device. Raise UserError for an unknown name."""
    if name not in PRECISIONS:
        raise UserError(f"Precision {name!r} is not known.", f"Use one of {', '.join(PRECISIONS)}.")
    if name != "auto":
        return name
    helps = torch.cuda.is_bf16_supported() if device.type == "cuda" else _cpu_gains()
    return "bf16" if helps else "fp32"


def _cpu_gains() -> bool:
    """Measure and return True if bf16 is faster. A CPU without bf16 instructions emulates them."""
    return _product_s(torch.float32) > _GAIN * _product_s(torch.bfloat16)


def _product_s(dtype: torch.dtype) -> float:
    a, b = torch.ones(2048, 192, dtype=dtype), torch.ones(192, 768, dtype=dtype)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return min(times)
