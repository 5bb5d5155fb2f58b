"""A vector of millions folded to a short one, so that products of two stay about the same.

Shapes: D parameters, M values of a sketch.
"""

import torch
from torch import Tensor

SKETCH = 65_521
"""A prime, so that places of one fold have nothing in common with the shapes of weights."""


class Sketch:
    """Folds vectors of D values to at most `values`, so that products stay, in expectation.

    x_D times fixed random signs, cut into rows of `values` and added up (a structured count
    sketch: Charikar et al., ICALP 2002). <Rx, Ry> has the expectation <x, y> and a deviation of
    about ||x|| ||y|| / sqrt(values); it is exact where D is not above `values`. Linear: the sketch
    of a sum is the sum of sketches.
    """

    def __init__(self, parameters: int, device: torch.device, values: int = SKETCH) -> None:
        self.values = min(values, parameters)
        generator = torch.Generator().manual_seed(0)
        signs_D = torch.randint(0, 2, (parameters,), generator=generator, dtype=torch.int8)
        self._signs_D = signs_D.mul_(2).sub_(1).to(device)

    def __call__(self, x_D: Tensor) -> Tensor:
        """sketch_M, float64 on the CPU, of a float32 vector."""
        signed_D = x_D * self._signs_D
        rest = len(signed_D) % self.values
        whole = len(signed_D) - rest
        sketch_M = signed_D[:whole].view(-1, self.values).sum(0)
        sketch_M[:rest] += signed_D[whole:]
        return sketch_M.double().cpu()
