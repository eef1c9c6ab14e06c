"""The samplers of a run, by name: how many are wanted, and which run. It touches no process."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.roles import SAMPLER


class Samplers:
    """`target` is how many samplers are wanted; `active` ones run or will be started again, the oldest first.

    `leaving` samplers have been told to end. A sampler that ends changes nothing but the speed of the run.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.active: list[str] = []
        self.leaving: set[str] = set()
        self._added = 0

    def add(self) -> str:
        """Add a sampler and return its name, which no other sampler of this launcher has had."""
        name = SAMPLER.process_name(self._added)
        self._added += 1
        self.active.append(name)
        return name

    def adopt(self, names: Sequence[str]) -> None:
        """Count samplers that run already, started by an earlier launcher of the run."""
        self.active += names
        self._added = max([self._added, *(int(name.rpartition("-")[2]) + 1 for name in names)])

    def adjust(self, wanted: int) -> tuple[int, list[str]]:
        """Set how many are wanted; returns how many to add, and the names of those to end, the newest first."""
        self.target = wanted
        surplus = self.active[wanted:]
        del self.active[wanted:]
        self.leaving.update(surplus)
        return max(0, wanted - len(self.active)), surplus[::-1]

    def ended(self, name: str) -> None:
        """Take note that a sampler has ended and will not be started again."""
        self.leaving.discard(name)
        if name in self.active:
            self.active.remove(name)
