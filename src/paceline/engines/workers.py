"""The workers of a run, by name: the active ones, those that must leave, and those that ended. Touches no process."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.exit_codes import EXIT_DONE
from paceline.runtime.roles import WORKER


class Workers:
    """`target` is how many workers are wanted; `active` workers run or will be started again, the oldest first.

    `leaving` workers have been told to leave; `codes` has the exit codes of the workers that are not started again.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.active: list[str] = []
        self.leaving: set[str] = set()
        self.codes: dict[str, int] = {}
        self._added = 0

    def add(self) -> str:
        """Add a worker and return its name, which no other worker of this launcher has had."""
        name = WORKER.process_name(self._added)
        self._added += 1
        self.active.append(name)
        return name

    def adopt(self, names: Sequence[str]) -> None:
        """Count workers that run already, started by an earlier launcher of the run."""
        self.active += names
        self._added = max([self._added, *(int(name.rpartition("-")[2]) + 1 for name in names)])

    def adjust(self, wanted: int) -> tuple[int, list[str]]:
        """Set how many workers are wanted; returns how many to add, and the names of those to end, the newest first."""
        self.target = wanted
        surplus = self.active[wanted:]
        del self.active[wanted:]
        self.leaving.update(surplus)
        return max(0, wanted - len(self.active)), surplus[::-1]

    def give_up(self) -> bool:
        """Want one worker fewer, because one will not be started again. False if no worker would be left."""
        if self.target <= 1:
            return False
        self.target -= 1
        return True

    def ended(self, name: str, code: int) -> None:
        """Take note that a worker has ended and will not be started again."""
        self.codes[name] = code
        self.leaving.discard(name)
        if name in self.active:
            self.active.remove(name)

    def start_over(self) -> list[str]:
        """Return the names of workers to start once more: all have ended, but a rewind has undone steps."""
        names = [name for name, code in self.codes.items() if code == EXIT_DONE][: self.target]
        for name in names:
            del self.codes[name]
        self.active += names
        return names

    @property
    def gone(self) -> bool:
        """Whether no worker is left. Leaving workers count only until a worker is `done`."""
        return not self.active and (self.done or not self.leaving)

    @property
    def done(self) -> bool:
        """Whether a worker has come to the end of its script."""
        return EXIT_DONE in self.codes.values()
