"""Decides how a run ends once no worker of its launcher is left. Pure: it touches no process and no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.engines.actions import Action, End, Finish, Outcome, Start, Tell
from paceline.engines.announcements import exception_in
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.workers import Workers
from paceline.messages.status import RunSummary, Status
from paceline.runtime.exit_codes import EXIT_LOST
from paceline.runtime.rundir import RunDir

_PARTING_S = 5.0  # seconds that a finished run waits for workers of `paceline join`, so that they can end


class Conclusion:
    """Decides how a run ends. `hint` names its directory. A rewind can undo the end: then the workers start again."""

    def __init__(self, workers: Workers, hint: ResumeHint) -> None:
        self._workers = workers
        self._hint = hint
        self._logs = RunDir(hint.run).logs
        self._since: float | None = None
        self._joiners = False
        self._rewinds = 0

    @property
    def begun(self) -> bool:
        """Whether a status has come since the last worker ended."""
        return self._since is not None

    def begin(self, now: float) -> None:
        """Take note that a status has come since the last worker ended, at the time `now`."""
        self._since = now

    def reset(self) -> None:
        """Take note that the run has workers again: it does not end now."""
        self._since = None

    def decide(self, status: Status, now: float) -> Iterator[Action]:
        """The actions that end the run or start its workers again; none while joined workers may still work."""
        assert self._since is not None
        joiners = [name for name in status.workers if name not in self._workers.codes]
        self._joiners = self._joiners or bool(joiners)
        if joiners and (status.unfinished or now < self._since + _PARTING_S):
            return
        if not self._workers.done and (status.unfinished or not self._joiners):
            advice = f"see the end of {self._logs}/worker-*.log; {self._hint.after_end(status)}"
            yield End(_no_worker(status, advice))
        elif status.unfinished:
            yield from self.start_over(status)
        else:
            yield Finish()

    def summarized(self, summary: RunSummary, status: Status) -> Iterator[Action]:
        """The actions that follow from the coordinator's `summary`: `End` with code 0 if the job is done.

        `status` is the newest status. If it has a failure, there is no action: the supervisor ends the run by it.
        """
        if summary.state == "unfinished":
            yield from self.start_over(status)
        elif summary.state != "failed":
            yield End(Outcome())
        elif status.failure is None:
            yield End(Outcome(EXIT_LOST, "the job failed", advice=f"see the logs in {self._logs}"))

    def start_over(self, status: Status) -> Iterator[Action]:
        """Start the workers again: a rewind has undone steps after every worker came to the end of its script.

        Without a new rewind the run ends instead: another start would change nothing.
        """
        self._since = None
        before, self._rewinds = self._rewinds, status.rewinds
        if self._rewinds <= before:
            yield End(_no_worker(status, f"see the end of {self._logs}/worker-*.log"))
            return
        yield Tell("a server was lost after the last step: the workers start their scripts again", warning=True)
        for name in self._workers.start_over():
            yield Start(name)


def explained(outcome: Outcome, last_words: str) -> Outcome:
    """The outcome with the exception that ended the run: its traceback, and its last line in the reason.

    `last_words` are those of the process whose end ended the run.
    """
    trace = outcome.trace or last_words
    exception = exception_in(trace)
    reason = outcome.reason if exception in outcome.reason else f"{outcome.reason}: {exception}"
    return replace(outcome, reason=reason, trace=trace if "\n" in trace.strip() else "")


def _no_worker(status: Status, advice: str) -> Outcome:
    known = status.step is not None and status.end_step is not None
    where = f" at step {status.step} of {status.end_step}" if known else ""
    return Outcome(EXIT_LOST, f"no worker is left{where}", advice=advice)
