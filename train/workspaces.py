"""cuBLAS without workspaces, where a step is quicker so.

With a workspace cuBLAS may split a product along the sum and add the parts up in a kernel of its
own, and may hand out tiles while it runs, from a counter that is cleared before each product. At 13
tokens of ViT-B on an H200 these are 125 of a step's 553 launches, and 2% of its time; the longer
the sequence, the less (benchmarks/results/step_h200_202611.md). But products of narrow layers, and
sums over very long ones, have too few tiles for a whole GPU unless they are split.
"""

import os
from collections.abc import Sequence

import torch
from torch import nn

from accelssl.model.objective import Objective

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}
"""What torch reads once, at a process's first product on a GPU."""

# What was measured: another architecture has other kernels.
_CAPABILITY = (9, 0)
_NARROWEST_ENCODER = 768
_LONGEST_LAYER = 8192


def are_set() -> bool:
    """Whether the environment says how large workspaces are, by the user or by what is below."""
    return any(name in os.environ for name in VARIABLES)


def leave_out_workspaces(objectives: Sequence[Objective], device: torch.device) -> None:
    """Do so if it makes the steps of all of these quicker, and the user has set neither variable.

    To be called before the first product: later it has no effect. It holds for all products of the
    process, whatever they are of.
    """
    if are_set() or not objectives:
        return
    if all(is_quicker_without(objective, device) for objective in objectives):
        os.environ.update(VARIABLES)


def is_quicker_without(objective: Objective, device: torch.device) -> bool:
    """Whether its step is, as far as that was measured."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != _CAPABILITY:
        return False
    layers = (module for module in objective.modules() if isinstance(module, nn.Linear))
    return (
        min(encoder.width for encoder in objective.encoders()) >= _NARROWEST_ENCODER
        and max(layer.out_features for layer in layers) <= _LONGEST_LAYER
    )
