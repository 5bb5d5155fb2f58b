"""The input of a model: one compressed view, as tensors and integers."""

from typing import Protocol

from torch import Tensor


class Tokens(Protocol):
    """Tokens of one view: values_NLV, V = 768, and keep_idx_NL.

    keep_idx_NL gives the tokens' places among grid x grid patches of side p.
    """

    @property
    def values_NLV(self) -> Tensor: ...
    @property
    def keep_idx_NL(self) -> Tensor: ...
    @property
    def p(self) -> int: ...
    @property
    def grid(self) -> int: ...
