"""The servers of a run by name: how many are wanted, which serve, which have been emptied. It touches no process."""

from __future__ import annotations

from collections.abc import Collection

from paceline.runtime.roles import SERVER


class Servers:
    """`target` servers are wanted; `active` are those that serve or will be started again, the oldest first.

    When fewer are wanted, the coordinator chooses which leave, and moves their blocks away first. `leaving` servers
    hold no block and have been told to end.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.active: list[str] = []
        self.leaving: set[str] = set()
        self._draining: frozenset[str] = frozenset()
        self._added = 0

    def add(self) -> str:
        """The name of a new server; two servers never have the same name."""
        name = SERVER.process_name(self._added)
        self._added += 1
        self.active.append(name)
        return name

    def adjust(self, wanted: int, draining: Collection[str], drained: Collection[str]) -> tuple[int, list[str]]:
        """What the coordinator says of them: how many must be started, and which to end."""
        self.target, self._draining = wanted, frozenset(draining)
        ending = [name for name in self.active if name in drained]
        self.active = [name for name in self.active if name not in drained]
        self.leaving.update(ending)
        staying = [name for name in self.active if name not in self._draining]
        return max(0, wanted - len(staying)), ending

    def can_do_without(self, replicas: int) -> bool:
        """The run can go on with one fewer: others have its blocks, and enough remain for every copy."""
        return 0 < replicas < self.target - 1

    def give_up(self, name: str) -> None:
        """This server will not be started again: one fewer is wanted."""
        self.active.remove(name)
        self.target -= 1

    def ended(self, name: str) -> str:
        """A server has ended: why it is not started again, "" if it is."""
        if name in self.leaving:
            self.leaving.discard(name)
            return "holds no blocks any more, and has ended"
        if name in self._draining and name in self.active:
            self.active.remove(name)
            return "ended while it was being emptied"
        return ""
