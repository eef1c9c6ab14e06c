"""The servers of a run by name: how many are wanted, which serve, which have been emptied. It touches no process."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.runtime.roles import SERVER


class Servers:
    """`target` is how many servers are wanted; `active` servers run or will be started again, the oldest first.

    When fewer servers are wanted, the coordinator chooses which ones leave, and first moves their blocks to the others.
    `leaving` servers hold no blocks any more and have been told to end.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.active: list[str] = []
        self.leaving: set[str] = set()
        self._draining: frozenset[str] = frozenset()
        self._added = 0

    def add(self) -> str:
        """Add a server and return its name, which no other server of the run has had."""
        name = SERVER.process_name(self._added)
        self._added += 1
        self.active.append(name)
        return name

    def adopt(self, names: Sequence[str]) -> None:
        """Count servers that run already, started by an earlier launcher of the run."""
        self.active += names
        self._added = max([self._added, *(int(name.rpartition("-")[2]) + 1 for name in names)])

    def adjust(self, wanted: int, draining: Collection[str], drained: Collection[str]) -> tuple[int, list[str]]:
        """Take over the coordinator's wishes; returns how many servers to start, and the names of those to end."""
        self.target, self._draining = wanted, frozenset(draining)
        ending = [name for name in self.active if name in drained]
        self.active = [name for name in self.active if name not in drained]
        self.leaving.update(ending)
        staying = [name for name in self.active if name not in self._draining]
        return max(0, wanted - len(staying)), ending

    def can_do_without(self, replicas: int) -> bool:
        """Whether the run can continue with one server fewer: blocks have copies, and enough servers are left."""
        return 0 < replicas < self.target - 1

    def give_up(self, name: str) -> None:
        """Remove a server that will not be started again, and want one server fewer."""
        self.active.remove(name)
        self.target -= 1

    def ended(self, name: str) -> str:
        """Take note that a server has ended; returns why it is not started again, or "" if it may be."""
        if name in self.leaving:
            self.leaving.discard(name)
            return "holds no blocks any more, and has ended"
        if name in self._draining and name in self.active:
            self.active.remove(name)
            return "ended while it was being emptied"
        return ""
