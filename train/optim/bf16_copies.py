"""The weights of linear layers in bfloat16, kept beside their float32 masters."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Bf16Copies:
    """bfloat16 copies of the trained weights of `module`'s linear layers, used under autocast.

    Autocast casts each weight before its product, and the product's gradient after the product: two
    launches for each weight and step. Here the optimiser writes the copy together with the weight
    and reads the copy's gradient. Values and gradients are the same, bit for bit, if each weight
    takes part in one product. Gradients of several products would be summed in bfloat16.
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
        """Return the copy of `weight`, or None if the weight has no copy."""
        return self._by_weight.get(weight)

    def __call__(self, *views: Any) -> Any:
        """Call module(*views) with the copies in place of the weights."""
        return torch.func.functional_call(self._module, self._copies, views)

    def refresh(self) -> None:
        """Refresh the copies if anything but the optimiser's kernel has written to a weight.

        A loaded checkpoint is an example. In-place writes to `weight.data` are not detected,
        because torch does not count them.
        """
        if (seen := self._seen()) == self._versions:
            return
        self._versions = seen
        with torch.no_grad():
            for name, weight in self._weights.items():
                self._copies[name].copy_(weight)
                self._copies[name].requires_grad_(weight.requires_grad)

    def _seen(self) -> list[tuple[int, int, bool]]:
        """Return torch's write counts, without kernel launches outside torch or in a graph."""
        weights = self._weights.values()
        return [(each._version, each.data_ptr(), each.requires_grad) for each in weights]
