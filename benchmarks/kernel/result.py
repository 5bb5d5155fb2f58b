"""Result of the kernel benchmark: as data, as a table for the terminal, as a page."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from accelssl.benchmarks.timing import Timing

EAGER, COMPILED, MASKED, DALI = "eager torch chain", "torch.compile", "chain of masks", "DALI"


@dataclass(frozen=True)
class KernelTime:
    """The op on `crops` crops. `gray_s` and `tokens_s` are its kernels' own times: those that sum
    the mean gray, and those that make tokens; None where nothing measures them.

    moved_bytes: what must be moved. copy_s: a copy that moves as many bytes.
    """

    implementation: str
    crops: int
    p: int
    drop: float
    kind: str
    time: Timing
    gray_s: float | None
    tokens_s: float | None
    moved_bytes: int
    copy_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.moved_bytes / self.time.median_s

    @property
    def of_same_copy(self) -> float:
        """Return the time of a copy of as many bytes, as a fraction of the op's time."""
        return self.copy_s / self.time.median_s

    @property
    def name(self) -> str:
        return f"N = {self.crops}, p = {self.p}, drop {self.drop:g}, {self.kind}"


@dataclass(frozen=True)
class PeerTime:
    """Another way to the tokens, and how many times as long as the op it took."""

    peer: str
    crops: int
    p: int
    drop: float
    kind: str
    time: Timing
    ratio: float


@dataclass(frozen=True)
class Goal:
    """A goal and whether it was met: None where it was not measured."""

    what: str
    is_met: bool | None
    measured: str

    @classmethod
    def at_least(cls, limit: float, form: str, what: str, found: list[tuple[float, str]]) -> "Goal":
        """Met if the smallest of what was `found` (value, where) is at least `limit`."""
        whole, ascending = f"at least {form.format(limit)} {what}", sorted(found)
        return cls._judged(whole, form, ascending, lambda worst: worst >= limit)

    @classmethod
    def at_most(cls, limit: float, form: str, what: str, found: list[tuple[float, str]]) -> "Goal":
        """Met if the largest of what was `found` (value, where) is at most `limit`."""
        whole, descending = f"at most {form.format(limit)} {what}", sorted(found, reverse=True)
        return cls._judged(whole, form, descending, lambda worst: worst <= limit)

    @classmethod
    def _judged(
        cls, what: str, form: str, found: list[tuple[float, str]], holds: Callable[[float], bool]
    ) -> "Goal":
        if not found:
            return cls(what, None, "")
        (worst, where), (best, elsewhere) = found[0], found[-1]
        measured = f"worst {form.format(worst)} ({where})"
        if len(found) > 1:
            measured += f", best {form.format(best)} ({elsewhere})"
        return cls(what, holds(worst), measured)

    @property
    def verdict(self) -> str:
        return {None: "not measured", True: "met", False: "not met"}[self.is_met]


@dataclass(frozen=True)
class KernelBench:
    """All of it. `environment`: hardware, versions and command, by name."""

    environment: dict[str, Any]
    copy_bytes_per_s: float
    times: tuple[KernelTime, ...]
    peers: tuple[PeerTime, ...]
    notes: tuple[str, ...]
    elapsed_s: float

    def of_copy(self, time: KernelTime) -> float:
        """Return the rate of necessary bytes, as a fraction of a large copy's bandwidth."""
        return time.bytes_per_s / self.copy_bytes_per_s

    def goals(self) -> list[Goal]:
        """Return the goals for the first implementation, which training uses.

        They are for GPUs: a CPU has none.
        """
        if self.environment["device"] == "cpu":
            return []
        first = [t for t in self.times if t.implementation == self.times[0].implementation]
        sharp = [t for t in first if t.kind != "blur"]
        batch = [t for t in first if (t.crops, t.drop, t.kind) == (1024, 0.75, "blur")]
        eager = [peer for peer in self.peers if peer.peer == EAGER]
        return [
            self._bandwidth_goal(0.8, "p = 16", [t for t in sharp if t.p == 16]),
            self._bandwidth_goal(0.6, "p > 16", [t for t in sharp if t.p > 16]),
            Goal.at_least(
                4,
                "{:.3g} times",
                f"as fast as the {EAGER}",
                [(peer.ratio, f"p = {peer.p}, drop {peer.drop:g}") for peer in eager],
            ),
            Goal.at_most(
                1,
                "{:.3g} ms",
                "for 1024 crops with blur at drop 0.75",
                [(time.time.median_s * 1e3, f"p = {time.p}") for time in batch],
            ),
        ]

    def _bandwidth_goal(self, least: float, where: str, times: list[KernelTime]) -> Goal:
        what = f"of the copy bandwidth without blur, {where}"
        return Goal.at_least(least, "{:.0%}", what, [(self.of_copy(t), t.name) for t in times])

    def __str__(self) -> str:
        from accelssl.benchmarks.kernel.page import terminal_table

        return terminal_table(self)

    def to_markdown(self) -> str:
        from accelssl.benchmarks.kernel.page import page

        return page(self)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "KernelBench":
        fields = json.loads(text)
        fields["times"] = tuple(KernelTime(**_timed(row)) for row in fields["times"])
        fields["peers"] = tuple(PeerTime(**_timed(row)) for row in fields["peers"])
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"time": Timing(**row["time"])}
