"""How a run ends once no worker of its launcher is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.statuses import status

from paceline.engines.actions import Action, End, Finish, Outcome, Start, Tell
from paceline.engines.conclusion import Conclusion, explained
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.workers import Workers
from paceline.messages.status import FailureStatus, RunSummary, Status
from paceline.runtime.exit_codes import EXIT_DONE, EXIT_LOST

OVER = Status(unfinished=False, step=9, end_step=9)
UNFINISHED = Status(unfinished=True, step=3, end_step=9)


def made(*codes: int) -> Conclusion:
    workers = Workers(len(codes))
    for code in codes:
        workers.ended(workers.add(), code)
    conclusion = Conclusion(workers, ResumeHint(Path("runs/a"), "30s"))
    conclusion.begin(10.0)
    return conclusion


def decided(conclusion: Conclusion, now: Status, at: float = 10.0) -> list[Action]:
    return list(conclusion.decide(now, at))


def test_the_engine_asks_for_the_summary_when_the_work_is_done() -> None:
    conclusion = made(EXIT_DONE, -9)
    assert decided(conclusion, OVER) == [Finish()]
    assert list(conclusion.summarized(RunSummary(state="done"), OVER)) == [End(Outcome())]


def test_a_run_without_a_worker_that_finished_is_lost() -> None:
    (end,) = decided(made(-9, -9), UNFINISHED)
    assert isinstance(end, End)
    assert (end.outcome.code, end.outcome.reason) == (EXIT_LOST, "no worker is left at step 3 of 9")
    assert "paceline run --resume runs/a" in end.outcome.advice


def test_joined_workers_continue_a_run_whose_own_workers_have_ended() -> None:
    conclusion = made(-9)
    joined = status(unfinished=True, workers=["worker-j1"])
    assert decided(conclusion, joined, 1000.0) == [], "the joined workers still compute"
    assert decided(conclusion, OVER, 1001.0) == [Finish()]


def test_the_engine_waits_briefly_for_joined_workers_after_the_end() -> None:
    conclusion = made(EXIT_DONE)
    joined = status(unfinished=False, workers=["worker-j1"])
    assert decided(conclusion, joined, 14.0) == []
    assert decided(conclusion, joined, 15.0) == [Finish()]


def test_a_rewind_after_the_last_worker_has_ended_restarts_the_scripts() -> None:
    conclusion = made(EXIT_DONE, EXIT_DONE)
    actions = list(conclusion.summarized(RunSummary(state="unfinished"), status(rewinds=1)))
    assert actions == [
        Tell("a server was lost after the last step: the workers start their scripts again", warning=True),
        Start("worker-0"),
        Start("worker-1"),
    ]
    assert not conclusion.begun


def test_a_run_that_lacks_steps_without_a_rewind_ends_as_lost() -> None:
    (end,) = decided(made(EXIT_DONE), UNFINISHED)
    assert isinstance(end, End)
    assert end.outcome.code == EXIT_LOST


@pytest.mark.parametrize("known", [True, False])
def test_a_failed_job_ends_the_run_here_only_if_its_failure_is_unknown(known: bool) -> None:
    now = Status(failure=FailureStatus("lost", "why")) if known else Status()
    actions = list(made(EXIT_DONE).summarized(RunSummary(state="failed"), now))
    assert actions == (
        [] if known else [End(Outcome(EXIT_LOST, "the job failed", advice="see the logs in runs/a/logs"))]
    )


def test_the_reason_names_the_exception_once_and_the_traceback_is_kept() -> None:
    trace = "Traceback (most recent call last):\n  File 'x'\nValueError: bad\n"
    for outcome, words in ((Outcome(1, "worker-0 failed", trace), ""), (Outcome(1, "worker-0 failed"), trace)):
        found = explained(outcome, words)
        assert (found.reason, found.trace) == ("worker-0 failed: ValueError: bad", trace)
        assert explained(found, "") == found
    one = explained(Outcome(1, "worker-0 failed"), "the script called exit(3)")
    assert (one.reason, one.trace) == ("worker-0 failed: the script called exit(3)", "")
    assert explained(Outcome(), "") == Outcome()
