"""The workers of a run: who works, who was told to leave, who has ended and how. Names only, no processes."""

from __future__ import annotations

from paceline.runtime.exit_codes import EXIT_DONE


class Crew:
    """`target` workers are wanted; `active` are those that work or will be started again, in order of hiring."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.active: list[str] = []
        self.leaving: set[str] = set()
        self.codes: dict[str, int] = {}
        self._hired = 0

    def hire(self) -> str:
        """A new worker's name; names are never used twice by two workers."""
        name = f"worker-{self._hired}"
        self._hired += 1
        self.active.append(name)
        return name

    def adjust(self, wanted: int) -> tuple[int, list[str]]:
        """Another number is wanted: how many must be hired, and who must leave (the newest first)."""
        self.target = wanted
        surplus = self.active[wanted:]
        del self.active[wanted:]
        self.leaving.update(surplus)
        return max(0, wanted - len(self.active)), surplus[::-1]

    def ended(self, name: str, code: int) -> None:
        """This one will not be started again."""
        self.codes[name] = code
        self.leaving.discard(name)
        if name in self.active:
            self.active.remove(name)

    def start_over(self) -> list[str]:
        """All have ended, but the work has not: the names to start once more."""
        names = [name for name, code in self.codes.items() if code == EXIT_DONE][: self.target]
        for name in names:
            del self.codes[name]
        self.active += names
        return names

    @property
    def gone(self) -> bool:
        """Whether nobody works any more. Once the work is done, nobody waits for those who were told to leave."""
        return not self.active and (self.done or not self.leaving)

    @property
    def done(self) -> bool:
        """Whether a worker has come to the end of its script."""
        return EXIT_DONE in self.codes.values()
