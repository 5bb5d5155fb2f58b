"""The measuring of the kernel benchmark: of the op, and of other ways to the same tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch import Tensor

from accelssl.benchmarks.kernel.inputs import (
    DTYPE,
    KINDS,
    InputPool,
    Inputs,
    Kind,
    mean_moved_bytes,
)
from accelssl.benchmarks.kernel.peers import StaticChain
from accelssl.benchmarks.kernel.plan import Plan
from accelssl.benchmarks.kernel.result import (
    COMPILED,
    DALI,
    EAGER,
    MASKED,
    KernelTime,
    PeerTime,
)
from accelssl.benchmarks.timing import (
    Call,
    Copies,
    Timing,
    kernel_seconds,
    time_captured,
    time_launched,
)
from accelssl.pipeline.compress import reference
from accelssl.pipeline.compress.op import Implementation, augment_patchify
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.cuda.nvrtc import CompilationFailed

KERNELS: dict[str, tuple[str, str]] = {
    "cuda": ("sum_gray", "augment_patchify"),
    "triton": ("_sum_gray", "_make_tokens"),
}
"""For each implementation the kernel that sums the gray and the one that makes tokens."""
PROFILED_CALLS, PEER_SETS, PEER_RUNS, CHECKED = 3, 4, 5, 8


class Measurement:
    """The measurement under way: what was found so far."""

    def __init__(self, device: torch.device, plan: Plan, progress: Callable[[str], None]) -> None:
        self._device, self._plan, self._progress = device, plan, progress
        self._missing: set[Implementation] = set()
        progress("copies")
        self.copies = Copies(device, plan.runs)
        self.times: list[KernelTime] = []
        self.peers: list[PeerTime] = []
        self.notes: list[str] = []

    def measure(self) -> None:
        for crops in self._plan.crops:
            pool = InputPool(crops, self._device)
            for p in self._plan.sides_p:
                self._measure_side(pool, crops, p)
            if crops == max(self._plan.crops):
                for compression in self._plan.peer_cases:
                    self._measure_peers(pool, crops, compression)

    def _measure_side(self, pool: InputPool, crops: int, p: int) -> None:
        cases = [(Compression(p, drop), kind) for drop in self._plan.drops for kind in KINDS]
        sets = [pool.sets(compression, kind) for compression, kind in cases]
        moved = [mean_moved_bytes(several, p) for several in sets]
        for implementation in self._plan.implementations:
            self._progress(f"{implementation}, {crops} crops, p = {p}")
            if not self._is_there(implementation, sets[0][0], p):
                continue
            calls = [[_call(implementation, inputs, p) for inputs in batch] for batch in sets]
            kernels = _kernels(implementation, calls)
            if kernels is None and implementation in KERNELS:
                self.notes.append(f"{implementation}, p = {p}: the profiler lost some kernels.")
            for i, (compression, kind) in enumerate(cases):
                gray_s, tokens_s = kernels[i] if kernels else (None, None)
                self.times.append(
                    KernelTime(
                        implementation,
                        crops,
                        p,
                        compression.drop,
                        kind,
                        time_captured(calls[i], self._device, self._plan.runs),
                        gray_s,
                        tokens_s,
                        moved[i],
                        self.copies.seconds(moved[i], len(sets[i])),
                    )
                )
            _refuse_wrong(implementation, calls[-1][0](), sets[-1][0], p)

    def _is_there(self, implementation: Implementation, inputs: Inputs, p: int) -> bool:
        if implementation in self._missing:
            return False
        try:
            _call(implementation, inputs, p)()
        except (CompilationFailed, ImportError, ValueError) as error:
            self._missing.add(implementation)
            self.notes.append(f"{implementation} is left out: {error}")
            return False
        return True

    def _measure_peers(self, pool: InputPool, crops: int, compression: Compression) -> None:
        kind: Kind = "blur"
        place = (crops, compression.p, compression.drop, kind)
        known = [t for t in self.times if (t.crops, t.p, t.drop, t.kind) == place]
        sets = pool.sets(compression, kind)[:PEER_SETS]
        for peer, measure in self._ways().items():
            if not known:
                break
            self._progress(f"{peer}, {crops} crops, {compression}")
            try:
                timing = measure(sets, compression.p)
            except Exception as error:  # of other people's code; it must not cost the rest
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                self.notes.append(f"{peer} is left out, {compression}: {reason}")
                continue
            ratio = timing.median_s / known[0].time.median_s
            self.peers.append(PeerTime(peer, *place, timing, ratio))

    def _ways(self) -> dict[str, Callable[[Sequence[Inputs], int], Timing]]:
        on_gpu = self._device.type == "cuda"
        ways: dict[str, Callable[[Sequence[Inputs], int], Timing]] = {}
        ways |= {EAGER: self._eager} if on_gpu else {MASKED: self._masked}
        if self._plan.compiles:
            ways[COMPILED] = self._compiled
        return ways | {DALI: self._dali}

    def _eager(self, sets: Sequence[Inputs], p: int) -> Timing:
        calls = [_call("torch", inputs, p) for inputs in sets]
        return time_launched(calls, self._device, PEER_RUNS)

    def _masked(self, sets: Sequence[Inputs], p: int) -> Timing:
        chain = StaticChain.of([inputs.params_NP for inputs in sets], p, DTYPE)
        return time_launched(_calls_of(chain, sets), self._device, PEER_RUNS)

    def _compiled(self, sets: Sequence[Inputs], p: int) -> Timing:
        chain = StaticChain.of([inputs.params_NP for inputs in sets], p, DTYPE)
        compiled = torch.compile(chain, dynamic=False, fullgraph=True)
        calls = _calls_of(compiled, sets)
        _refuse_wrong(COMPILED, calls[0](), sets[0], p)
        return time_captured(calls, self._device, PEER_RUNS)

    def _dali(self, sets: Sequence[Inputs], p: int) -> Timing:
        from accelssl.benchmarks.kernel.dali_peer import DaliChain

        chain = DaliChain(sets, p, DTYPE)
        return time_launched([chain] * len(sets), self._device, PEER_RUNS)


def _call(implementation: Implementation, inputs: Inputs, p: int) -> Callable[[], Tensor]:
    batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
    return lambda: augment_patchify(*batch, p, DTYPE, implementation)


def _calls_of(chain: Callable[..., Any], sets: Sequence[Inputs]) -> list[Callable[[], Tensor]]:
    return [partial(chain, x.crops_NHWC, x.params_NP, x.keep_idx_NL) for x in sets]


def _kernels(
    implementation: str, calls: Sequence[Sequence[Call]]
) -> list[tuple[float, float]] | None:
    """Return each case's median seconds of the kernel that sums grays and of the tokens kernel."""
    if implementation not in KERNELS:
        return None
    gray, tokens = KERNELS[implementation]
    several = [call for case in calls for call in islice(cycle(case), PROFILED_CALLS)]
    seconds = kernel_seconds(several, (gray, tokens))
    if seconds is None:
        return None
    return [
        (
            median(found[gray] for found in seconds[first : first + PROFILED_CALLS]),
            median(found[tokens] for found in seconds[first : first + PROFILED_CALLS]),
        )
        for first in range(0, len(seconds), PROFILED_CALLS)
    ]


def _refuse_wrong(who: str, tokens_NLV: Tensor, inputs: Inputs, p: int) -> None:
    """Raise RuntimeError if the tokens differ from the definition's by more than rounding."""
    batch = (inputs.crops_NHWC, inputs.params_NP, inputs.keep_idx_NL)
    crops, params, keep_idx = (x[:CHECKED] for x in batch)
    expected = reference.augment_patchify(crops, params, keep_idx, p)
    gap = (tokens_NLV[:CHECKED].float() - expected).abs() - 0.01 * expected.abs()
    if not bool((gap < 0.05).all()):
        raise RuntimeError(f"{who}, p = {p}: tokens are not the definition's ({gap.max():.3g} off)")
