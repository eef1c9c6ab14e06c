"""The decisions of a launcher when processes end or numbers change, without any process."""

from __future__ import annotations

from pathlib import Path

from tests.kit.statuses import status

from paceline.engines.actions import Action, Dismiss, End, KeepSize, Lost, Outcome, Rescale, Start, Tell, Terminate
from paceline.engines.decisions import Decisions
from paceline.engines.resume_hint import ResumeHint
from paceline.messages.status import FailureStatus, Status
from paceline.runtime.exit_codes import EXIT_DEPOSED, EXIT_DONE, EXIT_LEFT, EXIT_LOG, EXIT_LOST, EXIT_SCRIPT
from paceline.runtime.roles import COORDINATOR, SERVER, WORKER

RUNNING = Status()
FINISHED = Status(unfinished=False)
FAILED = Status(failure=FailureStatus("script", "worker-0 raised"))


def made(workers: int = 2, servers: int = 2, *, replicas: int = 0, limit: int = 5, resumed: bool = False) -> Decisions:
    decisions = Decisions(
        workers, servers, replicas, limit, ResumeHint(Path("runs/a"), "30s"), resumed=resumed, grace_s=30.0
    )
    for name in decisions.first():
        decisions.started(name, 1, 0.0)
    return decisions


def ended(decisions: Decisions, name: str, code: int, now: Status = RUNNING) -> list[Action]:
    return list(decisions.exited(name, code, 1.0, now))


def test_the_coordinator_starts_first_and_workers_last() -> None:
    assert list(Decisions(1, 2, 0, 5, ResumeHint(Path("run"), "30s"), resumed=False, grace_s=30.0).first()) == [
        "coordinator",
        "server-0",
        "server-1",
        "worker-0",
    ]


def test_the_first_restart_of_a_process_is_immediate_and_later_ones_wait() -> None:
    decisions = made()
    assert ended(decisions, "server-1", -9) == [Tell("server-1 was killed by signal 9: restarted (1)", warning=True)]
    assert decisions.waiting
    assert decisions.due(1.0) == ["server-1"]
    assert not decisions.waiting
    decisions.started("server-1", 2, 1.0)
    assert ended(decisions, "server-1", -9) == [
        Tell("server-1 was killed by signal 9: restarts in 0.5 s (2)", warning=True)
    ]
    assert decisions.due(1.4) == []
    assert decisions.due(1.5) == ["server-1"]
    assert decisions.restarts == {"sampler": 0, "worker": 0, "server": 2, "coordinator": 0}


def test_no_process_is_restarted_once_the_job_has_failed() -> None:
    decisions = made()
    assert ended(decisions, "server-0", -9, FAILED) == []
    assert not decisions.waiting


def test_a_required_role_that_ends_by_itself_loses_the_run() -> None:
    (lost,) = ended(made(), "coordinator", 2)
    assert lost == Lost("coordinator", 2, "coordinator ended (exit code 2)")
    assert list(made().lost(Lost("coordinator", 2, "why"), RUNNING)) == [
        End(
            Outcome(
                EXIT_LOST,
                "why",
                advice="see runs/a/logs/coordinator.log; `paceline run --resume runs/a` starts at step 0: "
                "no checkpoint was made, because none was due (--checkpoint-every 30s)",
                ended="coordinator",
            )
        )
    ]


def test_a_log_that_fails_ends_the_run_without_the_advice_to_do_the_same_again() -> None:
    (lost,) = ended(made(), "coordinator", EXIT_LOG)
    assert isinstance(lost, Lost), "the coordinator is not started again"
    why = "cannot write to the log runs/a/log.sqlite: it is full"
    (end,) = made().lost(
        Lost("coordinator", EXIT_LOG, "cannot write to the log runs/a/log.sqlite: it is full"), RUNNING
    )
    assert isinstance(end, End)
    assert (end.outcome.code, end.outcome.ended) == (EXIT_LOST, "")
    assert end.outcome.reason == why
    assert "remove the cause" in end.outcome.advice


def test_a_run_whose_checkpoints_were_taken_over_ends_as_deposed() -> None:
    (lost,) = ended(made(), "coordinator", EXIT_DEPOSED)
    assert isinstance(lost, Lost), "the coordinator is not started again"
    (end,) = made().lost(Lost("coordinator", EXIT_DEPOSED, "this run is deposed"), RUNNING)
    assert isinstance(end, End)
    assert (end.outcome.code, end.outcome.reason) == (EXIT_DEPOSED, "this run is deposed")
    assert "--resume" not in end.outcome.advice


def test_a_run_continues_without_a_server_if_others_have_its_blocks() -> None:
    decisions = made(servers=3, replicas=1)
    told = list(decisions.lost(Lost("server-2", -9, "server-2 ended"), RUNNING))
    assert told == [Rescale(2, 2), Tell("server-2 ended: the run continues with 2 servers", warning=True)]
    (end,) = decisions.lost(Lost("server-1", -9, "server-1 ended"), RUNNING)
    assert isinstance(end, End)
    assert end.outcome.ended == "server-1"


def test_a_script_that_fails_ends_the_run_unless_the_coordinator_knows() -> None:
    (end,) = ended(made(), "worker-1", EXIT_SCRIPT)
    assert isinstance(end, End)
    assert (end.outcome.code, end.outcome.ended) == (EXIT_SCRIPT, "worker-1")
    assert ended(made(), "worker-1", EXIT_SCRIPT, FAILED) == []


def test_a_worker_that_leaves_by_itself_is_not_wanted_any_more() -> None:
    decisions = made()
    assert ended(decisions, "worker-1", EXIT_LEFT)[1:] == [Rescale(1)]
    assert len(ended(decisions, "worker-0", EXIT_LEFT)) == 1, "a run wants at least one worker"


def test_a_worker_that_is_killed_after_the_work_is_done_is_not_restarted() -> None:
    decisions = made()
    assert ended(decisions, "worker-0", EXIT_DONE) == []
    assert decisions.needs_status(WORKER, -9)
    (told,) = ended(decisions, "worker-1", -9, FINISHED)
    assert told == Tell("worker-1 ended (signal 9); its slots go to the other workers", warning=True)
    assert not decisions.waiting


def test_a_server_or_coordinator_that_exits_by_itself_needs_a_new_status() -> None:
    decisions = made()
    assert decisions.needs_status(SERVER, EXIT_DONE)
    assert decisions.needs_status(COORDINATOR, EXIT_SCRIPT)
    assert not decisions.needs_status(SERVER, -9)
    assert not decisions.needs_status(WORKER, EXIT_DONE)


def test_a_larger_number_starts_processes_and_a_smaller_one_ends_the_newest() -> None:
    decisions = made()
    actions = list(decisions.saw(status(wanted_workers=3, wanted_servers=3), 1.0, resizable=True))
    assert actions == [
        KeepSize(3, 3),
        Tell("3 servers wanted instead of 2"),
        Start("server-2"),
        Tell("3 workers wanted instead of 2"),
        Start("worker-2"),
    ]
    fewer = {"wanted_workers": 1, "wanted_servers": 2, "draining": ["server-2"]}
    actions = list(decisions.saw(status(fewer), 1.0, resizable=True))
    assert actions == [
        KeepSize(1, 2),
        Tell("2 servers wanted instead of 3"),
        Tell("1 worker wanted instead of 3"),
        Terminate("worker-2"),
        Terminate("worker-1"),
    ]
    assert list(decisions.saw(status(fewer, drained=["server-2"]), 1.0, resizable=True)) == [Terminate("server-2")]
    assert decisions.expected("server-2", EXIT_DONE) == Tell("server-2 holds no blocks any more, and has ended")
    assert decisions.expected("server-1", -9) is None
    assert decisions.expected("worker-0", -9) is None


def test_a_worker_that_waits_for_its_restart_is_removed_without_a_signal() -> None:
    decisions = made()
    ended(decisions, "worker-1", -9)
    actions = list(decisions.saw(status(wanted_workers=1, wanted_servers=2), 1.0, resizable=True))
    assert Terminate("worker-1") not in actions
    assert not decisions.waiting


def test_a_resumed_run_reports_its_numbers_before_it_follows_the_status() -> None:
    decisions = made(resumed=True)
    assert list(decisions.saw(status(wanted_workers=5, wanted_servers=1), 1.0, resizable=False)) == []
    assert list(decisions.saw(status(wanted_workers=5, wanted_servers=1), 1.0, resizable=True)) == [Rescale(2, 2)]
    assert list(decisions.saw(status(wanted_workers=2, wanted_servers=2), 1.0, resizable=True)) == []


def test_a_worker_that_hangs_in_its_loop_is_ended_after_the_job_is_complete() -> None:
    decisions = made()
    ended(decisions, "worker-0", EXIT_DONE, FINISHED)
    worker = {"name": "worker-1", "role": "worker", "pid": 1, "node": "w", "script": "in"}
    hangs = status(unfinished=False, processes=[worker])
    assert list(decisions.saw(hangs, 100.0, resizable=False)) == []
    (told,) = decisions.saw(hangs, 105.0, resizable=False)
    assert isinstance(told, Tell)
    assert list(decisions.saw(hangs, 129.0, resizable=False)) == []
    warned, dismissed = decisions.saw(hangs, 130.0, resizable=False)
    assert dismissed == Dismiss("worker-1")
    assert isinstance(warned, Tell)
    assert list(decisions.saw(hangs, 131.0, resizable=False)) == [], "it is killed once"
    assert ended(decisions, "worker-1", -9, FINISHED) == [], "its end needs no other word"
    assert decisions.workers.gone


def test_no_worker_is_ended_while_the_job_has_work_or_no_script_has_ended() -> None:
    decisions = made()
    assert list(decisions.saw(FINISHED, 100.0, resizable=False)) == []
    assert list(decisions.saw(FINISHED, 1000.0, resizable=False)) == [], "a phase has ended, and another one may begin"
    ended(decisions, "worker-0", EXIT_DONE, FINISHED)
    list(decisions.saw(FINISHED, 1000.0, resizable=False))
    list(decisions.saw(RUNNING, 1029.0, resizable=False))  # a rewind: the wait begins again
    assert list(decisions.saw(FINISHED, 1031.0, resizable=False)) == []


# ---------------------------------------------------------------- hosts


def test_a_process_without_a_host_is_tried_again_a_little_later() -> None:
    decisions = made()
    decisions.wait("worker-1", 10.0)
    assert decisions.waiting
    assert decisions.due(10.1) == []
    assert decisions.due(10.3) == ["worker-1"]
    assert decisions.restarts == {"sampler": 0, "worker": 0, "server": 0, "coordinator": 0}, "waiting is no death"


def test_a_worker_that_moves_is_started_again_once_whatever_its_code() -> None:
    decisions = made()
    decisions.move("worker-0")
    (told,) = ended(decisions, "worker-0", EXIT_LEFT)
    assert isinstance(told, Tell)
    assert not told.warning
    assert decisions.due(1.0) == ["worker-0"]
    decisions.started("worker-0", 2, 1.0)
    ended(decisions, "worker-0", EXIT_LEFT)
    assert decisions.due(9.0) == [], "the next time it leaves for good"


def test_a_worker_that_moves_after_the_job_is_complete_stays_away() -> None:
    decisions = made()
    ended(decisions, "worker-1", EXIT_DONE, FINISHED)
    decisions.move("worker-0")
    ended(decisions, "worker-0", EXIT_LEFT, FINISHED)
    assert not decisions.waiting


def test_adopted_processes_count_and_the_missing_ones_are_started() -> None:
    decisions = Decisions(2, 2, 0, 5, ResumeHint(Path("run"), "30s"), resumed=False, grace_s=30.0)
    decisions.resize(3, 2)
    assert list(decisions.first({"server-1": 4, "worker-0": 1, "worker-2": 2})) == [
        "coordinator",
        "server-2",
        "worker-3",
    ]
    assert decisions.servers.active == ["server-1", "server-2"]
    assert decisions.workers.active == ["worker-0", "worker-2", "worker-3"]


def with_samplers(number: int = 2) -> Decisions:
    decisions = Decisions(1, 1, 0, 5, ResumeHint(Path("r"), "30s"), resumed=False, grace_s=30.0, samplers=number)
    for name in decisions.first():
        decisions.started(name, 1, 0.0)
    return decisions


def test_a_sampler_that_dies_is_restarted_and_one_that_cannot_work_ends_nothing() -> None:
    decisions = with_samplers()
    assert ended(decisions, "sampler-1", -9) == [Tell("sampler-1 was killed by signal 9: restarted (1)", warning=True)]
    assert decisions.due(1.0) == ["sampler-1"]
    (told,) = ended(decisions, "sampler-0", EXIT_SCRIPT)
    assert isinstance(told, Tell)
    assert "its script failed" in told.text
    assert ended(decisions, "sampler-1", EXIT_DONE) == []
    assert ended(decisions, "sampler-1", -9, FAILED) == []


def test_the_number_of_samplers_follows_the_status() -> None:
    decisions = with_samplers()
    more = status(wanted_workers=1, wanted_servers=1, wanted_samplers=3)
    assert list(decisions.saw(more, 0.0, resizable=True)) == [
        KeepSize(1, 1, 3),
        Tell("3 samplers wanted instead of 2"),
        Start("sampler-2"),
    ]
    fewer = status(wanted_workers=1, wanted_servers=1, wanted_samplers=0)
    actions = list(decisions.saw(fewer, 0.0, resizable=True))
    assert [a for a in actions if isinstance(a, Terminate)] == [Terminate(f"sampler-{i}") for i in (2, 1, 0)]
    assert ended(decisions, "sampler-2", EXIT_LEFT) == []
    assert list(decisions.saw(status(wanted_workers=1, wanted_servers=1), 0.0, resizable=True)) == []
