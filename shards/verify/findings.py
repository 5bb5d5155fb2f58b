"""Findings of the checks of a shard set: each problem with its place.

A set can be wrong a million times over. All are counted, the first of each kind are kept.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

MANIFEST: Final = "manifest"
FILES: Final = "files"
CHECKSUMS: Final = "checksums"
INDEX: Final = "index"
LABELS: Final = "labels"
CLASSES: Final = "classes"
DUPLICATES: Final = "duplicates"
ORDER: Final = "order"
IMAGES: Final = "images"
CHECKS: Final = (MANIFEST, FILES, CHECKSUMS, INDEX, LABELS, CLASSES, DUPLICATES, ORDER, IMAGES)

LISTED_OF_A_KIND: Final = 20
# How the figure of a check begins that could not be made.
NOT_CHECKED: Final = "not checked"


class Kind(NamedTuple):
    """Kind of a finding: the check that finds it, and a few words."""

    check: str
    name: str


class Finding(NamedTuple):
    """One finding: the place (a file, a key, a class) and a description."""

    kind: Kind
    where: str
    what: str


class Listed:
    """Findings by kind, in the order in which they came."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self._first: dict[Kind, list[Finding]] = {}

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        where, what = _printable(finding.where), _printable(finding.what)
        self._keep(Finding(finding.kind, where, what))

    def add_lazily(self, kind: Kind, finding: Callable[[], Finding]) -> None:
        """Add a finding, but make it only if it is kept."""
        if self.counts[kind] < LISTED_OF_A_KIND:
            self.add(finding())
        else:
            self.counts[kind] += 1

    def take(self, other: "Listed") -> None:
        self.counts.update(other.counts)
        for finding in other:
            self._keep(finding)

    def _keep(self, finding: Finding) -> None:
        first = self._first.setdefault(finding.kind, [])
        if len(first) < LISTED_OF_A_KIND:
            first.append(finding)

    def __iter__(self) -> Iterator[Finding]:
        for check in CHECKS:
            for kind, first in self._first.items():
                if kind.check == check:
                    yield from first


class Findings:
    """Problems, and notes on unusual but permitted facts. Pickles: workers return it."""

    def __init__(self) -> None:
        self.problems = Listed()
        self.notes = Listed()

    def wrong(self, check: str, kind: str, where: str, what: str) -> None:
        self.problems.add(Finding(Kind(check, kind), where, what))

    def note(self, check: str, kind: str, where: str, what: str) -> None:
        self.notes.add(Finding(Kind(check, kind), where, what))

    def take(self, other: "Findings") -> None:
        """Append all findings of the other."""
        self.problems.take(other.problems)
        self.notes.take(other.notes)


def _printable(text: str) -> str:
    """Return the text in one line, with escapes for characters that a terminal cannot show."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
