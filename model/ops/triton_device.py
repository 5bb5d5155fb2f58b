"""Where Triton's kernels are launched."""

import torch


def on(device: torch.device) -> torch.cuda.device:
    """Triton launches on the current device, whichever its tensors are on; on a CPU it
    interprets."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
