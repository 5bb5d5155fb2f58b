"""The class names of tars that others wrote: from their JSON where it tells, else numbers."""

from collections.abc import Mapping, Set


class AdoptedClasses:
    """Takes in the labels of one tar after the other."""

    def __init__(self) -> None:
        self.labels: set[int] = set()
        self._name_of: dict[int, str] | None = {}

    def take(self, labels: Set[int], names: Mapping[int, str] | None) -> None:
        """The labels of a tar, and the name that each has there if each has one."""
        self.labels |= labels
        if self._name_of is not None and names is not None:
            agree = all(
                self._name_of.setdefault(label, name) == name for label, name in names.items()
            )
            self._name_of = self._name_of if agree else None
        else:
            self._name_of = None

    def names(self) -> tuple[str, ...]:
        """The names by label, if no label lacks one and no two share one; else the numbers."""
        count = 1 + max(self.labels)
        name_of = self._name_of or {}
        if len(set(name_of.values())) == len(name_of) == count:
            return tuple(name_of[label] for label in range(count))
        return tuple(map(str, range(count)))
