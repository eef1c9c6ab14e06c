"""Rule 24, only content can be bad: a bad record is durable, by its position, before a slot without it is sealed.

A time-out or a refused access is never a bad record: it is tried again, and then ends the job. The record has weight 0,
is in the log, and the audit names it. A step that lacks samples for any other reason is a problem of the log.

Upheld by:
- `core.coordinator.bad_records.BadRecords.leave_out`: the fact is written before the answer
- `worker.loop.Loop._leave_out`: the answer comes before the turn, and so before the seal
- `core.audit.bad_records.left_out`: what each step may lack
- `data.files.retries.with_retries`: transport is tried again, and never bad
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.line import error, prepared
from tests.kit.story import Story

from paceline.core.audit.audit import audit
from paceline.core.effects import BadRecordFact, FactRow
from paceline.errors import BadRecordError, DataUnreachableError, UsageError
from paceline.messages import Abort, LeaveOut, Ok
from paceline.types import BadRecord


class Holey:
    """Points, some of which are bad."""

    length = 32
    fingerprint = "holey"

    def __init__(self, bad: Sequence[int], problem: type[Exception] = BadRecordError) -> None:
        self.bad, self.problem = bad, problem

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        for position in positions:
            if position in self.bad:
                raise self.problem(f"record {position} of points.csv")
        return [(torch.full((4,), float(p) / 32), torch.tensor([p / 32])) for p in positions]


def bad(*positions: int) -> tuple[BadRecord, ...]:
    return tuple(BadRecord(position, 1, f"record {position}") for position in positions)


# ---------------------------------------------------------------- the coordinator


def test_the_fact_is_durable_before_the_answer() -> None:
    job = CoordinatorKit(workers=2).start().initialise()
    effects = job.say("worker-1", LeaveOut(job.req(), 0, bad(5), 10))
    (fact,) = written(effects, BadRecordFact)
    assert (fact.phase, fact.record.first, fact.worker) == (0, 5, "worker-1")
    kinds = [getattr(e, "row", None) is not None for e in effects]
    answers = [k for k, effect in enumerate(effects) if isinstance(getattr(effect, "message", None), Ok)]
    assert max(k for k, is_write in enumerate(kinds) if is_write) < answers[0]


def test_a_record_is_noted_once_also_after_a_restart() -> None:
    job = CoordinatorKit(workers=2).start().initialise()
    run = (BadRecord(8, 4, "a row group"),)
    job.say("worker-0", LeaveOut(job.req(), 0, run, 10))
    assert written(job.say("worker-1", LeaveOut(job.req(), 0, (*run, *bad(9)), 10)), BadRecordFact) == []
    job.restart()
    job.start(begin=False)
    effects = job.say("worker-1", LeaveOut(job.req(), 0, (*run, *bad(12)), 10))
    assert [fact.record.first for fact in written(effects, BadRecordFact)] == [12]
    assert job.core.machines.bad_records.count == 5


def test_too_many_bad_records_fail_the_job_and_name_the_knob() -> None:
    job = CoordinatorKit(workers=1).start().initialise()
    assert sent(job.say("worker-0", LeaveOut(job.req(), 0, bad(1, 2), 2)), Ok)
    abort = sent(job.say("worker-0", LeaveOut(job.req(), 0, bad(3), 2)), Abort)[0]
    assert "3 bad records, and max_bad_records=2. The last: record 3" in abort.reason


# ---------------------------------------------------------------- the job


def train(data: Any, **options: Any) -> tuple[list[int], Any]:
    job, model, optimizer = prepared()
    sizes = []
    with job:
        for x, y in job.batches(data, 4, slots=2, epochs=2, **options):
            sizes.append(len(x))
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    return sizes, job


def test_a_bad_record_ends_the_job_unless_it_may_be_left_out() -> None:
    with pytest.raises(BadRecordError, match=r"record 7 of points\.csv"):
        train(Holey([7]))
    sizes, _ = train(Holey([7, 9]), on_bad_record="skip")
    assert sum(sizes) == 2 * 30


def test_a_slot_without_any_record_is_sealed_empty() -> None:
    sizes, job = train(Holey(range(8)), on_bad_record="skip", shuffle=False)
    assert sizes == [4] * 6 * 2
    assert job.step == 8


def test_the_limit_holds() -> None:
    with pytest.raises(UsageError, match="max_bad_records=1"):
        train(Holey([7, 9]), on_bad_record="skip", max_bad_records=1)


def test_transport_is_never_bad() -> None:
    with pytest.raises(DataUnreachableError):
        train(Holey([7], DataUnreachableError), on_bad_record="skip")


def test_loader_processes_leave_out_the_same() -> None:
    assert (
        train(Holey([7, 9]), on_bad_record="skip", loader_workers=2)[0] == train(Holey([7, 9]), on_bad_record="skip")[0]
    )


@pytest.mark.parametrize("options", [{"on_bad_record": "ignore"}, {"on_bad_record": "skip", "max_bad_records": 0}])
def test_other_values_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"on_bad_record must be|max_bad_records must be"):
        train(Holey([]), **options)


# ---------------------------------------------------------------- the audit


def story() -> Story:
    made = Story("bsp", slots=2)
    made.phase(data_len=20, batch=4, epochs=1)
    made.go(3)
    return made


def lacking(step: int, count: float) -> tuple[Story, list[Any]]:
    """A log whose step `step` counts fewer samples."""
    import msgspec

    made = story()
    return made, [msgspec.structs.replace(c, samples=c.samples - count) if c.step == step else c for c in made.commits]


def samples_of(made: Story, step: int) -> list[int]:
    from paceline.core.effects import PhaseFact
    from paceline.core.sampling import Order

    (fact,) = [row.fact for row in made.facts if isinstance(row.fact, PhaseFact)]
    return [s for slot in range(2) for s in Order(made.seed).samples(fact.segment, step, slot).tolist()]


def test_the_audit_names_bad_records_and_accepts_the_steps_that_lack_them() -> None:
    made, commits = lacking(1, 2)
    mine, other = samples_of(made, 1), samples_of(made, 0)
    report = audit(made.facts, commits)
    assert any(p.kind == "samples" for p in report.problems), "a step lacks samples without a fact"
    facts = [*made.facts, *(FactRow(0, 0, BadRecordFact(0, r, "worker-0")) for r in bad(mine[0], mine[5]))]
    report = audit(facts, commits)
    assert report.ok, report.problems
    assert report.counts.bad_samples == 2
    assert report.bad_records[0] == f"sample {mine[0]} of phase 0: record {mine[0]}"
    facts = [*made.facts, *(FactRow(0, 0, BadRecordFact(0, r, "worker-0")) for r in bad(mine[0], other[0]))]
    (problem,) = audit(facts, commits).problems
    assert problem.detail.endswith("the step has 8 samples, 7 of them without the bad records")
