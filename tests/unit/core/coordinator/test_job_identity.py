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
from paceline.types import Kind, ModelSpec, OptimizerSpec, TensorSpec


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


def _optimizer(name: str, **hyper: float) -> ModelSpec:
    known = model().optimizer.hyper[0]
    return msgspec.structs.replace(model(), optimizer=OptimizerSpec(name, ({**known, **hyper},)))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            model(tensors=(TENSORS[0], TensorSpec("bias", (101,), "float32", Kind.PARAMETER, 0))),
            "prepared a model with bias (101 float32, parameter of group 0) where the job has bias (",
        ),
        (model(tensors=TENSORS[:1]), "prepared a model of 1 tensors, the job has 2"),
        (msgspec.structs.replace(model(), clip_norm=1.0), "clip_norm=1.0, the job has clip_norm=None"),
        (model(deterministic=False), "kernels are not deterministic in worker-9 and deterministic in the job"),
        (_optimizer("AdamW", lr=0.1), "prepared the optimizer AdamW, the job has SGD"),
        (_optimizer("SGD", lr=0.3), "prepared SGD with lr=0.3, the job has lr="),
    ],
)
def test_a_worker_with_another_model_fails_by_name(other: object, says: str) -> None:
    job = CoordinatorKit().start(begin=False)
    job.say("w", Register(job.req(), "worker", "worker-9", 1, "here", None, job.job))
    (abort, *_) = sent(job.say("w", Prepare(job.req(), other)), Abort)  # type: ignore[arg-type]
    assert says in abort.reason
    assert "worker-9" in abort.reason
    assert "Spec(" not in abort.reason, "a message shows no object of the code"
    assert "others" not in abort.reason, "there may be none"
