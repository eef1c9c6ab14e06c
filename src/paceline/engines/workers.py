"""The workers of a run by name: which work, which must leave, which have ended and how. It touches no process."""

from __future__ import annotations

from paceline.runtime.exit_codes import EXIT_DONE
from paceline.runtime.roles import WORKER


class Workers:
    """`target` workers are wanted; `active` are those that work or will be started again, the oldest first.

    `leaving` workers have been told to leave; `codes` has the exit codes of those that ended for good.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.active: list[str] = []
        self.leaving: set[str] = set()
        self.codes: dict[str, int] = {}
        self._added = 0

    def add(self) -> str:
        """The name of a new worker; two workers never have the same name."""
        name = WORKER.process_name(self._added)
        self._added += 1
        self.active.append(name)
        return name

    def adjust(self, wanted: int) -> tuple[int, list[str]]:
        """Another number is wanted: how many must be added, and which must leave (the newest first)."""
        self.target = wanted
        surplus = self.active[wanted:]
        del self.active[wanted:]
        self.leaving.update(surplus)
        return max(0, wanted - len(self.active)), surplus[::-1]

    def give_up(self) -> bool:
        """A worker will not come back: one fewer is wanted. False if that would be none."""
        if self.target <= 1:
            return False
        self.target -= 1
        return True

    def ended(self, name: str, code: int) -> None:
        """This worker will not be started again."""
        self.codes[name] = code
        self.leaving.discard(name)
        if name in self.active:
            self.active.remove(name)

    def start_over(self) -> list[str]:
        """All workers have ended, but the work has not: the names to start once more."""
        names = [name for name, code in self.codes.items() if code == EXIT_DONE][: self.target]
        for name in names:
            del self.codes[name]
        self.active += names
        return names

    @property
    def gone(self) -> bool:
        """No active worker remains. Once the work is done, leaving workers do not count."""
        return not self.active and (self.done or not self.leaving)

    @property
    def done(self) -> bool:
        """A worker has come to the end of its script."""
        return EXIT_DONE in self.codes.values()
