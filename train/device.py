"""The option --device: the device on which a command computes."""

import torch

from accelssl.errors import UserError
from accelssl.pipeline.decode import hardware_queues


def pick_device(name: str) -> torch.device:
    """Return the device for auto, cpu, cuda or cuda:N. Raise UserError if torch cannot use it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"Device {name!r} is not known.", "Use auto, cpu, cuda or cuda:N."
        ) from None
    if device.type == "cuda":
        hardware_queues.tell_once()
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"There is no {name}: torch sees {torch.cuda.device_count()} CUDA devices.",
            "Use --device cpu, or check the driver with nvidia-smi.",
        )
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"Device {name!r} is not supported.", "Use auto, cpu, cuda or cuda:N.")
    return device
