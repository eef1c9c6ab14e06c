"""Workers must agree on the job's arguments and on the model."""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import TENSORS, CoordinatorKit, model, sent

from paceline.messages import (
    Abort,
    JobArgs,
    Prepare,
    Register,
    Welcome,
)
from paceline.types import Kind, TensorSpec


def test_the_job_takes_its_dials_from_the_first_worker() -> None:
    job = CoordinatorKit(mode="asp").start(begin=False)
    (welcome,) = sent(
        job.say("late", Register(job.req(), "worker", "late", 1, "here", None, JobArgs(7, "asp", 9, 4))), Welcome
    )
    assert welcome.job == job.job


def test_workers_that_disagree_on_seed_or_mode_fail_by_name() -> None:
    job = CoordinatorKit().start(begin=False)
    effects = job.say("w", Register(job.req(), "worker", "worker-9", 1, "here", None, JobArgs(8, "bsp", 2, 1)))
    (abort, *_) = sent(effects, Abort)
    assert abort.kind == "script"
    assert "worker-9 joined with seed=8" in abort.reason


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (model(tensors=(TENSORS[0], TensorSpec("bias", (101,), "float32", Kind.PARAMETER, 0))), "'bias', shape=(101,)"),
        (model(tensors=TENSORS[:1]), "has 1 tensors, others 2: build the same model everywhere"),
        (msgspec.structs.replace(model(), clip_norm=1.0), "clip_norm=1.0"),
        (model(deterministic=False), "deterministic=False"),
    ],
)
def test_a_worker_with_another_model_fails_by_name(other: object, says: str) -> None:
    job = CoordinatorKit().start(begin=False)
    job.say("w", Register(job.req(), "worker", "worker-9", 1, "here", None, job.job))
    (abort, *_) = sent(job.say("w", Prepare(job.req(), other)), Abort)  # type: ignore[arg-type]
    assert says in abort.reason
    assert "worker-9" in abort.reason
