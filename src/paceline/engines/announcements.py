"""What an engine tells of a run: the lines of its roles, its state, who died and who is back."""

from __future__ import annotations

from paceline.engines.processes import Line
from paceline.engines.restart_policy import QUICK_S, Again, Decision, GiveUp
from paceline.engines.screen import Screen
from paceline.messages.status import Status
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_DONE, EXIT_LEFT, EXIT_SCRIPT, how

_TAIL_LINES = 40


class Chronicle:
    """Says each thing once. `begun` is true once it was said what will be computed."""

    def __init__(self, screen: Screen) -> None:
        self.begun = False
        self._screen = screen
        self._rewinds: int | None = None
        self._recomputed = 0
        self._changes: tuple[int, int] | None = None  # generation and number of the last one that was told
        self._short = False
        self._warning = ""
        self._lines: dict[str, list[str]] = {}

    def line(self, line: Line) -> None:
        """A role printed a line."""
        kept = self._lines.setdefault(line.name, [])
        kept.append(line.text)
        del kept[:-_TAIL_LINES]
        self._screen.line(line.name, line.text)

    def tail(self, name: str) -> str:
        """The last lines of a role."""
        return "\n".join(self._lines.get(name, []))

    def status(self, status: Status) -> None:
        """The newest state of the run, with what is new in it."""
        if status.headline and not self.begun:
            self.begun = True
            self._screen.note(status.headline)
            if status.advice:
                self._screen.note(status.advice, warning=True)
        if self._rewinds is not None and status.rewinds > self._rewinds:
            where = f"goes back to version {status.version}" if status.version >= 0 else "begins anew"
            steps = status.recomputed_steps - self._recomputed
            again = f"computes {steps} step{'s' * (steps != 1)} again"
            why = next((c.why for c in status.changes[::-1] if c.kind == "rewind"), "a server is lost")
            self._screen.note(f"{why}: the job {where} and {again}", warning=True)
        self._rewinds, self._recomputed = status.rewinds, status.recomputed_steps
        self._moved(status)
        if status.warning and status.warning != self._warning:
            self._screen.note(status.warning, warning=True)
        self._warning = status.warning
        self._screen.status(status)

    def _moved(self, status: Status) -> None:
        """Backups that took over, sets that shrank, and that every block has its copies again.

        What came before a rewind that is heard of with it is not told any more.
        """
        generation, changes = status.generation, status.changes
        told, self._changes = self._changes, (generation, changes[-1].number if changes else 0)
        undone = max((c.number for c in changes if c.kind == "rewind"), default=0)
        for change in changes:
            if told is None or (generation, change.number) <= told or change.number < undone:
                continue
            if change.kind == "failover":
                # That no commit is lost is not said: another server may be dead already.
                self._screen.note(f"{change.why}: a backup took over", warning=True)
            elif change.kind == "shrink":
                self._screen.note(f"{change.why}: those copies are made again", warning=True)
        short = status.placement.short > 0
        if self._short and not short and not status.rewinding:
            self._screen.note("every block has its copies again")
        self._short = short

    def wants(self, role: str, number: int, before: int) -> None:
        """So many of a role are wanted from now on."""
        if number != before:
            self._screen.note(f"{number} {role}{'s' * (number != 1)} wanted instead of {before}")

    def restarts(self, name: str, code: int, decision: Again) -> None:
        """A role has ended, and is started again."""
        if code == EXIT_AGAIN:
            self._screen.note(f"{name} starts its script again: the job went back to before its place in it")
            return
        ended = f"was killed by {how(code)}" if code < 0 else f"ended ({how(code)})"
        when = "restarted" if decision.after_s == 0 else f"restarts in {decision.after_s:g} s"
        self._screen.note(f"{name} {ended}: {when} ({decision.counted})", warning=True)

    def retires(self, name: str, code: int, decision: Decision, limit: int) -> None:
        """A worker has ended, and is not started again."""
        if code == EXIT_LEFT:
            self._screen.note(f"{name} was told to leave, and has handed back what it held")
        elif isinstance(decision, GiveUp):
            self._screen.note(f"{enough(name, code, decision, limit)}: it is not restarted", warning=True)
        elif code not in (EXIT_DONE, EXIT_SCRIPT):
            self._screen.note(f"{name} ended ({how(code)}); its slots go to the other workers", warning=True)


def enough(name: str, code: int, decision: Decision, limit: int) -> str:
    """Why something is not started again."""
    if not isinstance(decision, GiveUp):
        return f"{name} ended ({how(code)})"
    often = f" {decision.deaths} times in a row within {QUICK_S:.0f} s of its start" * (decision.deaths > 1)
    return f"{name} ended ({how(code)}){often}, and --max-restarts is {limit}"
