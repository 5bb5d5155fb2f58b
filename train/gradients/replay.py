"""Gradients of an analysis on a GPU: one CUDA graph for each shape of batch.

Networks and sub-batches of an analysis are small for a GPU. Without a graph, the launches of
kernels would dominate at every compression.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accelssl.model.tokens import Tokens
from accelssl.train.graph_inputs import fill, places_like, shapes
from accelssl.train.ranks.streams import training_stream

Bank = tuple[Tensor, ...]
Compute = Callable[[Sequence[Tokens], Bank], Tensor]


@dataclass(frozen=True)
class CapturedGradient:
    """A captured gradient that reads `views` and `bank` at fixed addresses."""

    graph: torch.cuda.CUDAGraph
    views: tuple[Tokens, ...]
    bank: Bank


class Replays:
    """A function of (views, bank) that returns compute(views, bank), D values on a GPU, from a
    graph.

    The first batch of a shape runs without a graph, to warm up. All graphs share one memory pool:
    only one is replayed at a time.
    """

    def __init__(self, compute: Compute, size: int, device: torch.device) -> None:
        self._compute, self._stream = compute, training_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._found_D = torch.empty(size, device=device)
        self._captured: dict[Hashable, CapturedGradient | None] = {}

    def __call__(self, views: Sequence[Tokens], bank: Bank) -> Tensor:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            found_D = self._run(views, bank)
        current.wait_stream(self._stream)
        found_D.record_stream(current)
        return found_D

    def _run(self, views: Sequence[Tokens], bank: Bank) -> Tensor:
        shape = _shape(views, bank)
        if shape not in self._captured:
            self._captured[shape] = None
            return self._compute(views, bank)
        captured = self._captured[shape] = self._captured[shape] or self._capture(views, bank)
        fill(captured.views, views)
        for static_BE, bank_BE in zip(captured.bank, bank, strict=True):
            static_BE.copy_(bank_BE)
        captured.graph.replay()
        return self._found_D.clone()

    def _capture(self, views: Sequence[Tokens], bank: Bank) -> CapturedGradient:
        static = places_like(views)
        static_bank = tuple(map(torch.empty_like, bank))
        graph = torch.cuda.CUDAGraph()
        # Other threads decode and prepare batches on this device at the same time.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            self._found_D.copy_(self._compute(static, static_bank))
        return CapturedGradient(graph, static, static_bank)


def _shape(views: Sequence[Tokens], bank: Bank) -> Hashable:
    return shapes(views), tuple(bank_BE.shape for bank_BE in bank)
