"""What the launcher shows of a run: the lines that processes print, the status, and deaths and restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.engines.actions import Outcome, Tell
from paceline.engines.fork_client import ServerEnd
from paceline.engines.output import Line, Stream
from paceline.engines.restart_policy import QUICK_S, Again, Decision, GiveUp, Stay
from paceline.engines.screen import Screen
from paceline.messages.status import Status
from paceline.runtime.exit_codes import (
    EXIT_CLOSED,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_LEFT,
    EXIT_SCRIPT,
    EXIT_TERMINATED,
    HOST_LOST,
    how,
)
from paceline.runtime.roles import Role, role_of

_MAX_WORDS = 1000
_INTERRUPTED = (EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_CLOSED)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")


class Announcements:
    """Shows each piece of news once. `begun` is true once the headline was shown, which says what will be computed."""

    def __init__(self, screen: Screen) -> None:
        self.begun = False
        self._screen = screen
        self._rewinds: int | None = None
        self._recomputed = 0
        self._changes: tuple[int, int] | None = None  # (generation, number) of the newest placement change so far
        self._short = False
        self._warning = ""
        self._warned = 0
        self._last_words: dict[str, list[str]] = {}

    def line(self, line: Line) -> None:
        """Show a line that a process printed; its last words are kept for the end of the run."""
        if line.stream is Stream.LAST:
            kept = self._last_words.setdefault(line.name, [])
            kept.append(line.text)
            del kept[:-_MAX_WORDS]
        else:
            self._screen.line(line.name, line.text, error=line.stream is Stream.ERR or not role_of(line.name).scripted)

    def ended(self, outcome: Outcome) -> None:
        """Show how a run ended that is not done."""
        if outcome.code in _INTERRUPTED:
            self._screen.note(f"{outcome.reason}: every process has ended; {outcome.advice}", warning=True)
        elif outcome.code != EXIT_DONE:
            self._screen.failure(outcome.reason, outcome.trace, outcome.advice)

    def started(self, name: str) -> None:
        """Forget the last words of earlier processes called `name`."""
        self._last_words.pop(name, None)

    def last_words(self, name: str) -> str:
        """Why the process called `name` ended, as it said: an error, perhaps with its traceback; "" if it did not."""
        return "\n".join(self._last_words.get(name, []))

    def status(self, status: Status) -> None:
        """Show the newest status of the run, with a note about everything that is new in it."""
        if status.headline and not self.begun:
            self.begun = True
            self._screen.note(status.headline)
            if status.advice:
                self._screen.note(status.advice, warning=True)
        if self._rewinds is not None and status.rewinds > self._rewinds:
            where = f"goes back to version {status.version}" if status.version >= 0 else "begins again"
            steps = status.recomputed_steps - self._recomputed
            again = f"computes {steps} step{'s' * (steps != 1)} again"
            why = next((c.why for c in status.changes[::-1] if c.kind == "rewind"), "a server is lost")
            self._screen.note(f"{why}: the job {where} and {again}", warning=True)
        self._rewinds, self._recomputed = status.rewinds, status.recomputed_steps
        self._placement(status)
        if status.warning and status.warning != self._warning:
            self._screen.note(status.warning, warning=True)
        self._warning = status.warning
        for text in status.warnings[self._warned :]:
            self._screen.note(text, warning=True)
        self._warned = max(self._warned, len(status.warnings))
        self._screen.status(status)

    def _placement(self, status: Status) -> None:
        """Show failovers, in-sync sets that shrank, and the moment when every block has its copies again.

        A change that came before a rewind in the same status is not shown: the rewind has undone it.
        """
        generation, changes = status.generation, status.changes
        told, self._changes = self._changes, (generation, changes[-1].number if changes else 0)
        undone = max((c.number for c in changes if c.kind == "rewind"), default=0)
        for change in changes:
            if told is None or (generation, change.number) <= told or change.number < undone:
                continue
            if change.kind == "failover":
                # Do not promise that no commit is lost: another server may be dead already.
                self._screen.note(f"{change.why}: a backup took over", warning=True)
            elif change.kind == "set":
                self._screen.note(change.why)
            elif change.kind == "shrink":
                self._screen.note(f"{change.why}: these copies will be made again", warning=True)
        short = status.placement.short > 0
        if self._short and not short and not status.rewinding:
            self._screen.note("every block has its copies again")
        self._short = short


def exception_in(trace: str) -> str:
    """The line of a traceback that names the exception; "" if there is none."""
    lines = [line for line in trace.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _EXCEPTION.fullmatch(line)), lines[-1] if lines else "")


def wanted(role: Role, number: int, before: int) -> Iterator[Tell]:
    """A note that another number of processes of `role` is wanted; nothing if the number is the same as `before`."""
    if number != before:
        yield Tell(f"{number} {role.name}{'s' * (number != 1)} wanted instead of {before}")


def restarted(name: str, code: int, decision: Again) -> Tell:
    """The note that a process has ended and is started again."""
    if code in role_of(name).restarts_itself:
        return Tell(f"{name} starts its script again: the job was rewound to before its loop")
    if code == EXIT_LEFT:
        return Tell(f"{name} has left its host, and starts on another one")
    ended = f"was killed by {how(code)}" if HOST_LOST < code < 0 else f"ended ({how(code)})"
    when = "restarted" if decision.after_s == 0 else f"restarts in {decision.after_s:g} s"
    if code == HOST_LOST:
        when = "starts again where a host has room"
    return Tell(f"{name} {ended}: {when} ({decision.counted})", warning=True)


def fork_server_ended(end: ServerEnd, decision: Decision) -> Tell:
    """The note that the fork server has ended, and what follows from it."""
    ended = "did not answer" if end.code is None else f"ended ({how(end.code)})"
    if isinstance(decision, Stay):
        return Tell(f"the fork server {ended}: its spare takes over", warning=True)
    slower = "roles start by their own command, which takes seconds longer"
    if isinstance(decision, GiveUp):
        again = f" {decision.deaths} times before it had loaded torch"
        return Tell(f"the fork server {ended}{again}: it is not started again, and {slower}", warning=True)
    return Tell(f"the fork server {ended}: it is started again; until it has loaded torch, {slower}", warning=True)


def retired(name: str, code: int, decision: Decision, limit: int) -> Iterator[Tell]:
    """A note that a worker has ended and is not started again; nothing if its script came to its end or failed."""
    if code == EXIT_LEFT:
        yield Tell(f"{name} was told to leave, and has given back its leases")
    elif isinstance(decision, GiveUp):
        yield Tell(f"{not_restarted(name, code, decision, limit)}: it is not restarted", warning=True)
    elif code not in (EXIT_DONE, EXIT_SCRIPT):
        yield Tell(f"{name} ended ({how(code)}); its slots go to the other workers", warning=True)


def sampler_retired(name: str, code: int, *, expected: bool) -> Iterator[Tell]:
    """A note that a sampler has ended and is not started again; nothing if it had to end."""
    if not expected and code not in (EXIT_DONE, EXIT_LEFT):
        why = "its script failed; a script must not need the results of its loop" if code == EXIT_SCRIPT else how(code)
        yield Tell(f"{name} has ended ({why}): other samplers, or the workers, prepare its slots", warning=True)


def not_restarted(name: str, code: int, decision: Decision, limit: int) -> str:
    """The reason why a process is not started again, in words."""
    if not isinstance(decision, GiveUp):
        return f"{name} ended ({how(code)})"
    often = f" {decision.deaths} times in a row within {QUICK_S:.0f} s of its start, each time without a commit"
    often *= decision.deaths > 1
    return f"{name} ended ({how(code)}){often}, and --max-restarts is {limit}"
