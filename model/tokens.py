"""What a model takes: one compressed view, as tensors and integers."""

from typing import Protocol

from torch import Tensor


class Tokens(Protocol):
    """values_NLV, V = 768; keep_idx_NL: the tokens' places among grid x grid patches of side p."""

    @property
    def values_NLV(self) -> Tensor: ...
    @property
    def keep_idx_NL(self) -> Tensor: ...
    @property
    def p(self) -> int: ...
    @property
    def grid(self) -> int: ...
