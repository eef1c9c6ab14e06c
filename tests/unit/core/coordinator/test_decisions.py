"""Decisions of policies in the coordinator: in the order of versions, at v + every, also after a restart (rule 8)."""

from __future__ import annotations

import pytest
from tests.kit.core import CoordinatorKit, sent, written

from paceline.config.policies import PolicySpec
from paceline.core.effects import Effect, PolicyFact, SegmentFact, StopFact, WarningFact
from paceline.messages import Abort, Declare, DeclarePolicy, EvalGrant, ValidatorSpec
from paceline.types import Sums


def job_with(validators: int = 1, every: int = 2, **policies: object) -> CoordinatorKit:
    """One worker, one slot a step, 24 steps; validator n runs every `every` · (n + 1) steps."""
    job = CoordinatorKit(workers=1, slots=1, policies=PolicySpec(**policies))  # type: ignore[arg-type]
    job.start(data_len=48).initialise()
    for number in range(validators):
        spec = ValidatorSpec(number, f"check{number}", every * (number + 1), 2, 2, number)
        job.say("worker-0", Declare(job.req(), spec))
    return job


def advance(job: CoordinatorKit, values: dict[int, float], metric: str = "acc") -> list[Effect]:
    """Train until no step is left, and report `values` of the versions that are validated (0.0 for others)."""
    effects: list[Effect] = []
    while job.core.state == "running":
        grants = sent(job.turn("worker-0", declared=2), EvalGrant)
        if grants:
            value = values.get(grants[0].version, 0.0)
            effects += job.evaluated("worker-0", grants[0], {metric: Sums(2 * value, 2.0)}, declared=2)
            job.core.tables.leases.abandon_open("worker-0")
            continue
        job.core.tables.leases.abandon_open("worker-0")
        before = job.core.version
        effects += job.finish_step(job.core.watermark.low)
        if job.core.version == before:
            break
    return effects


def stopped(job: CoordinatorKit) -> tuple[int, str | None]:
    return job.core.version, job.core.machines.segments.stop_reason


def test_a_target_that_version_v_reaches_stops_the_job_at_v_plus_every() -> None:
    job = job_with(target="acc>=0.9")
    effects = advance(job, {2: 0.5, 4: 0.95})
    assert stopped(job) == (6, "--target acc>=0.9 is reached: acc is 0.95 at version 4")
    assert [fact.step for fact in written(effects, StopFact)] == [6]


def test_a_result_that_comes_late_is_decided_in_its_turn_and_stops_at_the_same_step() -> None:
    """The result of version 4 is there before that of version 2: patience must count them in order."""
    job = CoordinatorKit(workers=2, slots=1, policies=PolicySpec(patience=1, metric="acc"))
    job.start(data_len=48).initialise()
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "check", 2, 2, 2, 0)))
    job.finish_step(0)
    job.finish_step(1)
    (late,) = sent(job.turn("worker-1", declared=1), EvalGrant)
    job.finish_step(2)
    job.finish_step(3)
    (early,) = sent(job.turn("worker-0", declared=1), EvalGrant)
    assert (late.version, early.version) == (2, 4)
    assert not written(job.evaluated("worker-0", early, {"acc": Sums(0.8, 2.0)}, declared=1), StopFact)
    (fact,) = written(job.evaluated("worker-1", late, {"acc": Sums(1.0, 2.0)}, declared=1), StopFact)
    assert (fact.step, fact.reason) == (
        6,
        "--patience 1: acc was best at version 2 (0.5), and not better in 1 validations up to version 4",
    )


def test_patience_needs_a_metric_if_there_are_several() -> None:
    job = job_with(patience=1)
    grant = None
    for step in range(2):
        job.finish_step(step)
    (grant,) = sent(job.turn("worker-0", declared=1), EvalGrant)
    effects = job.evaluated("worker-0", grant, {"acc": Sums(1.0, 2.0), "loss": Sums(1.0, 2.0)}, declared=1)
    (abort, *_) = sent(effects, Abort)
    assert abort.reason.startswith("--patience 1: validations produce acc, loss: name the one that counts")


def test_a_plateau_changes_the_rate_by_a_segment_with_its_reason_and_once() -> None:
    job = job_with(plateau=1, factor=0.5, metric="acc", max_epochs=1)
    effects = advance(job, {2: 0.5, 4: 0.4, 6: 0.6, 8: 0.5})
    facts = written(effects, SegmentFact)
    assert [(fact.step, fact.change.lr_scale) for fact in facts[:2]] == [(6, 0.5), (10, 0.25)]
    assert facts[0].reason == "--plateau 1: acc not better than 0.5 (version 2) up to version 4"
    job.restart()
    assert [change.reason for change in job.core.tables.phases.changes][:1] == [facts[0].reason]


def test_a_metric_that_nobody_produces_is_a_warning_and_the_job_goes_on() -> None:
    job = job_with(target="top5:0.9")
    effects = advance(job, {})
    (fact,) = [fact for fact in written(effects, WarningFact) if "top5" in fact.text]
    assert fact.text == "--target top5:0.9 has no effect: no validation produces top5, they produce acc"
    assert job.core.version == 24


def test_epochs_samples_and_time_end_the_job_at_a_step_boundary() -> None:
    job = job_with(validators=0, max_samples=9)
    advance(job, {})
    assert stopped(job) == (5, "--max-samples 9: 10 are applied")
    job = job_with(validators=0, max_time_s=5.0)
    for step in range(3):
        job.finish_step(step)
    job.now = 4.9
    job.core.tick(job.now)
    assert job.core.state == "running"
    job.now = 5.0
    job.wrote(job.core.tick(job.now))
    assert stopped(job) == (3, "--max-time 5s")


@pytest.mark.parametrize("restarts", [(), (3,), (2, 4, 5)])
def test_a_restart_of_the_coordinator_changes_no_decision(restarts: tuple[int, ...]) -> None:
    values = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.6, 10: 0.9}
    job = job_with(patience=2, metric="acc")
    job.say("worker-0", DeclarePolicy(job.req(), 0, PolicySpec(source="here", target="acc>=0.95")))
    while job.core.state == "running" and job.core.version < 24:
        if job.core.version in restarts:
            restarts = tuple(version for version in restarts if version != job.core.version)
            job.restart()
            for node in ("server-0", "worker-0"):
                role = "server" if node == "server-0" else "worker"
                changes = (
                    {"applied": job.core.version, "epoch": 1} if role == "server" else {"declared": 1, "progress": 0}
                )
                job.say(node, job.registration(role, node, **changes))
        found = sent(job.turn("worker-0", declared=1), EvalGrant)
        job.core.tables.leases.abandon_open("worker-0")
        if found:
            sums = {"acc": Sums(2 * values[found[0].version], 2.0)}
            job.evaluated("worker-0", found[0], sums, declared=1)
            job.core.tables.leases.abandon_open("worker-0")
        else:
            job.finish_step(job.core.watermark.low)
    assert stopped(job) == (
        10,
        "--patience 2: acc was best at version 4 (0.7), and not better in 2 validations up to version 8",
    )


def test_workers_must_ask_for_the_same_policies() -> None:
    job = CoordinatorKit(workers=2, slots=1).start().initialise()
    mine, other = PolicySpec(source="job.stop_when('a>1')", target="a>1"), PolicySpec(source="that", target="a>2")
    assert written(job.say("worker-0", DeclarePolicy(job.req(), 0, mine)), PolicyFact)
    assert not written(job.say("worker-1", DeclarePolicy(job.req(), 0, mine)), PolicyFact)
    (abort,) = sent(job.say("worker-1", DeclarePolicy(job.req(), 0, other)), Abort, "worker-1")
    assert "worker-1 called that as its policy number 1, the job has job.stop_when('a>1') there" in abort.reason


def test_a_policy_that_cannot_be_read_is_refused() -> None:
    job = CoordinatorKit(workers=1, slots=1).start().initialise()
    abort, *_ = sent(job.say("worker-0", DeclarePolicy(job.req(), 0, PolicySpec(source="that", target="?"))), Abort)
    assert "that must be a metric and the number that it shall reach" in abort.reason


def test_a_result_that_waits_for_an_older_one_is_decided_after_a_restart() -> None:
    job = CoordinatorKit(workers=2, slots=1, policies=PolicySpec(patience=1, metric="acc"))
    job.start(data_len=48).initialise()
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "check", 2, 2, 2, 0)))
    job.finish_step(0)
    job.finish_step(1)
    assert sent(job.turn("worker-1", declared=1), EvalGrant)
    job.finish_step(2)
    job.finish_step(3)
    (early,) = sent(job.turn("worker-0", declared=1), EvalGrant)
    job.evaluated("worker-0", early, {"acc": Sums(0.8, 2.0)}, declared=1)
    job.restart()
    job.say("server-0", job.registration("server", "server-0", applied=4, epoch=1, kept=(2, 3)))
    job.say("worker-0", job.registration("worker", "worker-0", declared=1, progress=0))
    job.say("worker-1", job.registration("worker", "worker-1", declared=1, progress=0))
    (late,) = sent(job.turn("worker-0", declared=1), EvalGrant)
    assert late.version == 2
    (fact,) = written(job.evaluated("worker-0", late, {"acc": Sums(1.0, 2.0)}, declared=1), StopFact)
    assert fact.step == 6


def test_the_same_decision_lowers_the_rate_once_also_if_it_is_made_again_after_a_rewind() -> None:
    job = job_with(validators=0)
    dials = job.core.machines.live_dials
    (fact,) = [found for found in dials.scale_rate(0.5, "a plateau at version 4", 6) if isinstance(found, SegmentFact)]
    assert (fact.step, fact.change.lr_scale) == (6, 0.5)
    assert dials.scale_rate(0.5, "a plateau at version 4", 6) == []
    (fact,) = [found for found in dials.scale_rate(0.5, "a plateau at version 8", 10) if isinstance(found, SegmentFact)]
    assert (fact.step, fact.change.lr_scale) == (10, 0.25)
