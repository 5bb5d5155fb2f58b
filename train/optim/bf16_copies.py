"""The weights of linear layers in bfloat16, kept beside their float32 masters."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Bf16Copies:
    """Copies of the trained weights of `module`'s linear layers, which stand in for them under
    autocast.

    Autocast casts each weight before its product, and the product's gradient after it: two launches
    for each weight and step. Here the optimiser writes the copy, as it writes the weight, and reads
    the gradient that the product gave to the copy. Values and gradients are the same, bit for bit,
    where each weight takes part in one product: of several, gradients would be summed in bfloat16.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._weights = {
            f"{name}.weight": layer.weight
            for name, layer in module.named_modules()
            if type(layer) is nn.Linear
            and layer.weight.requires_grad
            and layer.weight.dtype == torch.float32
        }
        self._copies: dict[str, Tensor] = {
            name: nn.Parameter(weight.detach().bfloat16()) for name, weight in self._weights.items()
        }
        self._by_weight = {weight: self._copies[name] for name, weight in self._weights.items()}
        self._versions = self._seen()

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._copies.values())

    def of(self, weight: Tensor) -> Tensor | None:
        """Its copy, None where it has none."""
        return self._by_weight.get(weight)

    def __call__(self, *views: Any) -> Any:
        """module(*views), the copies in the weights' places."""
        return torch.func.functional_call(self._module, self._copies, views)

    def refresh(self) -> None:
        """Copy anew, if anything but the optimiser's kernel has written to a weight: a checkpoint
        that was loaded, say. What is written in place to `weight.data`, which torch does not count,
        is not seen."""
        if (seen := self._seen()) == self._versions:
            return
        self._versions = seen
        with torch.no_grad():
            for name, weight in self._weights.items():
                self._copies[name].copy_(weight)
                self._copies[name].requires_grad_(weight.requires_grad)

    def _seen(self) -> list[tuple[int, int, bool]]:
        """Torch counts what it writes itself; a kernel launched beside it, or in a graph, not."""
        weights = self._weights.values()
        return [(each._version, each.data_ptr(), each.requires_grad) for each in weights]
