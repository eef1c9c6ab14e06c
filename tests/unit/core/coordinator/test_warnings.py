"""The first warning about a topic counts for the whole job, and is durable."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest
from tests.kit.core import CoordinatorKit, sent, written

from paceline.core.effects import WarningFact
from paceline.messages import Ok, Sealed, Warn


@pytest.fixture
def job() -> CoordinatorKit:
    return CoordinatorKit(workers=2).start().initialise()


def _seal(job: CoordinatorKit, worker: str, logs: dict[str, float], **warnings: str) -> list[WarningFact]:
    grant = job.lease(worker)
    report = Sealed(grant.step, grant.slot, grant.fence, 1.0, ({"lr": 0.1},), logs, 0.1, warnings)
    return written(job.turn(worker, sealed=report), WarningFact)


def test_a_logged_value_that_is_not_finite_is_named_once(job: CoordinatorKit) -> None:
    assert _seal(job, "worker-1", {"loss": 1.0, "norm": nan}) != []
    assert _seal(job, "worker-0", {"loss": inf}) == []
    (text,) = job.core.machines.warnings.texts.values()
    assert text.startswith("norm is nan at step 0, slot 0 (worker-1). ")


def test_finite_values_are_no_warning(job: CoordinatorKit) -> None:
    assert _seal(job, "worker-0", {"loss": 1e30}) == []
    assert job.core.machines.warnings.texts == {}


def test_the_first_warning_of_a_topic_counts(job: CoordinatorKit) -> None:
    _seal(job, "worker-0", {}, schedule="it has ended")
    _seal(job, "worker-1", {"loss": nan}, schedule="it ended before")
    assert list(job.core.machines.warnings.texts) == ["schedule", "not finite"]
    assert job.core.machines.warnings.texts["schedule"] == "it has ended"


def test_a_worker_can_warn_outside_of_a_turn(job: CoordinatorKit) -> None:
    effects = job.say("worker-1", Warn(job.req(), "passed loop", "look here"))
    assert ([fact.text for fact in written(effects, WarningFact)], len(sent(effects, Ok))) == (["look here"], 1)
    assert written(job.say("worker-0", Warn(job.req(), "passed loop", "and here")), WarningFact) == []


def test_a_new_coordinator_does_not_warn_again(job: CoordinatorKit) -> None:
    _seal(job, "worker-0", {"loss": nan})
    texts = dict(job.core.machines.warnings.texts)
    job.restart()
    assert job.core.machines.warnings.texts == texts


def test_a_report_of_an_older_worker_has_no_warnings() -> None:
    old = msgspec.msgpack.encode((3, 1, (1, 9), 1.0, (), {}, 0.5))
    assert msgspec.msgpack.decode(old, type=Sealed).warnings == {}
