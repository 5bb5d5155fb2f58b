"""The report on a shard set: a line for each check, then the findings."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from accelssl.shards.verify.findings import CHECKS, NOT_CHECKED, Finding, Findings, Kind

Outcome = Literal["ok", "wrong", "note"]


@dataclass(frozen=True)
class Check:
    """One check: its name, how it came out, and a short figure such as "256 tars, 140.1 GB".

    The outcome of one that could not be made is a note, and its figure begins with NOT_CHECKED.
    """

    name: str
    outcome: Outcome
    figure: str


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify_shards`.

    `problems` and `notes` list the first 20 of each kind; `problem_counts` and `note_counts` count
    them all.
    """

    location: str
    checks: tuple[Check, ...]
    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    problem_counts: Mapping[Kind, int]
    note_counts: Mapping[Kind, int]

    @property
    def is_right(self) -> bool:
        return not self.problem_counts

    def __str__(self) -> str:
        count = sum(self.problem_counts.values())
        verdict = "right" if self.is_right else f"wrong, {count:,} problem{'s' * (count != 1)}"
        width = max(len(check.name) for check in self.checks)
        if self.is_right and self.note_counts:
            verdict = "right, with notes"
        lines = [f"{self.location}: {verdict}"]
        lines += [f"  {c.name:{width}}  {c.outcome:5}  {c.figure}" for c in self.checks]
        lines += _listed(self.problems, self.problem_counts, "wrong")
        lines += _listed(self.notes, self.note_counts, "note")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(
            {
                "location": self.location,
                "is_right": self.is_right,
                "checks": [vars(check) for check in self.checks],
                "problems": _as_json(self.problems, self.problem_counts),
                "notes": _as_json(self.notes, self.note_counts),
            }
        )


def verification(location: str, findings: Findings, figures: Mapping[str, str]) -> Verification:
    """Return the report of the findings, with a figure for each of the CHECKS."""
    wrong = {kind.check for kind in findings.problems.counts}
    noted = {kind.check for kind in findings.notes.counts}

    def outcome(check: str) -> Outcome:
        is_checked = not figures[check].startswith(NOT_CHECKED)
        return "wrong" if check in wrong else "ok" if is_checked and check not in noted else "note"

    return Verification(
        location=location,
        checks=tuple(Check(name, outcome(name), figures[name]) for name in CHECKS),
        problems=tuple(findings.problems),
        notes=tuple(findings.notes),
        problem_counts=Counter(findings.problems.counts),
        note_counts=Counter(findings.notes.counts),
    )


def _by_kind(findings: Iterable[Finding]) -> dict[Kind, list[Finding]]:
    of_kind: dict[Kind, list[Finding]] = {}
    for finding in findings:
        of_kind.setdefault(finding.kind, []).append(finding)
    return of_kind


def _listed(
    findings: Iterable[Finding], counts: Mapping[Kind, int], outcome: Outcome
) -> Iterable[str]:
    for kind, first in _by_kind(findings).items():
        yield ""
        yield f"{outcome}: {kind.check}: {kind.name} ({counts[kind]:,})"
        yield from (f"  {finding.where}: {finding.what}" for finding in first)
        if counts[kind] > len(first):
            yield f"  and {counts[kind] - len(first):,} more"


def _as_json(findings: Iterable[Finding], counts: Mapping[Kind, int]) -> list[dict[str, object]]:
    return [
        {
            "check": kind.check,
            "kind": kind.name,
            "count": counts[kind],
            "first": [{"where": finding.where, "what": finding.what} for finding in first],
        }
        for kind, first in _by_kind(findings).items()
    ]
