"""Decides how a run ends once no worker of its launcher is left. Pure: it touches no process and no clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.engines.actions import Action, End, Finish, Outcome, Start, Tell
from paceline.engines.workers import Workers
from paceline.messages.status import RunSummary, Status
from paceline.runtime.exit_codes import EXIT_LOST

_PARTING_S = 5.0  # how long a run that is over waits for workers that another process has started


class Conclusion:
    """Follows the end of one run in the directory `run`: a rewind may undo it."""

    def __init__(self, workers: Workers, run: Path) -> None:
        self._workers = workers
        self._run = run
        self._since: float | None = None
        self._joiners = False
        self._rewinds = 0

    @property
    def begun(self) -> bool:
        """A status was seen since the last worker ended."""
        return self._since is not None

    def begin(self, now: float) -> None:
        """The status is newer than the end of the last worker."""
        self._since = now

    def reset(self) -> None:
        """Workers are there again."""
        self._since = None

    def decide(self, status: Status, now: float) -> Iterator[Action]:
        """What to do now; nothing as long as it is not clear how the run ends."""
        assert self._since is not None
        joiners = [name for name in status.workers if name not in self._workers.codes]
        self._joiners = self._joiners or bool(joiners)
        if joiners and (status.unfinished or now < self._since + _PARTING_S):
            return
        if not self._workers.done and (status.unfinished or not self._joiners):
            advice = f"look at the end of logs/worker-*.log; `paceline run --resume {self._run}` goes on"
            yield End(_no_worker(status, advice))
        elif status.unfinished:
            yield from self.start_over(status)
        else:
            yield Finish()

    def summarized(self, summary: RunSummary, status: Status) -> Iterator[Action]:
        """The coordinator has answered `Finish`; `status` is newer. `End` with code 0 if the job is done."""
        if summary.state == "unfinished":
            yield from self.start_over(status)
        elif summary.state != "failed":
            yield End(Outcome())
        elif status.failure is None:
            yield End(Outcome(EXIT_LOST, "the job failed", advice="see logs"))

    def start_over(self, status: Status) -> Iterator[Action]:
        """Every worker came to the end of its script, but a rewind has undone steps after that."""
        self._since = None
        before, self._rewinds = self._rewinds, status.rewinds
        if self._rewinds <= before:
            yield End(_no_worker(status, "look at the end of logs/worker-*.log"))
            return
        yield Tell("a server was lost at the very end: the workers start their scripts again", warning=True)
        for name in self._workers.start_over():
            yield Start(name)


def _no_worker(status: Status, advice: str) -> Outcome:
    known = status.step is not None and status.end_step is not None
    where = f" at step {status.step} of {status.end_step}" if known else ""
    return Outcome(EXIT_LOST, f"no worker is left{where}", advice=advice)
