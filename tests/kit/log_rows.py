"""Rows for a log: commits, facts of every kind, and choices of attempts."""

from __future__ import annotations

from math import inf, nan

from paceline.config.policies import PolicySpec
from paceline.coordinator.store import LogStore
from paceline.core.effects import (
    AnyFact,
    BadRecordFact,
    CheckpointFact,
    ChoiceFact,
    ClaimFact,
    DataChangeFact,
    DataFact,
    DrainFact,
    EvaluationRow,
    FactRow,
    IncarnationFact,
    JobFact,
    LogRow,
    MarkFact,
    MemberFact,
    ModelFact,
    PhaseFact,
    PlacementFact,
    PolicyFact,
    ScaleFact,
    SegmentFact,
    StopFact,
    ValidatorFact,
    WarningFact,
    Write,
)
from paceline.messages import DeclarePolicy, JobArgs, Position, Sealed, ValidatorSpec
from paceline.types import (
    BadRecord,
    Commit,
    DataFingerprint,
    DialChange,
    Fence,
    Hyper,
    Kind,
    ModelSpec,
    OptimizerSpec,
    PhaseEntry,
    PhaseSpec,
    Placement,
    Segment,
    TensorSpec,
)

HYPER: Hyper = ({"lr": 0.1, "betas": (0.9, 0.99), "nesterov": False, "maximize": None},)
JOB = JobArgs(7, "bsp", None, 1)
SEGMENT = Segment(0, 0, 0, 0, 5, 1, 20, 2, 2, True, False, 0, "bsp")
PHASE = PhaseSpec(0, 20, 2, 2, 1, True, False)
POSITION = Position(
    0, 4, 3, (5, 7), (SEGMENT,), (PhaseEntry(PHASE, SEGMENT, 5, None),), (), JOB, {"loss": nan}, claims=("a",)
)


def commit(version: int, step: int | None = None, *, incarnation: int = 0, **more: object) -> Commit:
    fields: dict[str, object] = {
        "incarnation": incarnation,
        "version": version,
        "step": version - 1 if step is None else step,
        "fences": (Fence(1, 2 * version), Fence(1, 2 * version + 1)),
        "hyper": HYPER,
        "scale": 1.0,
        "pin": False,
        "staleness": 0,
        "lag": 0,
        "samples": 4.0,
    }
    return Commit(**fields | more)  # type: ignore[arg-type]


def write(log: LogStore, *rows: Commit | LogRow | EvaluationRow | FactRow) -> None:
    log.write([Write(row) for row in rows])


def chosen(step: int, slot: int) -> FactRow:
    return FactRow(0, 0, ChoiceFact(Sealed(step, slot, Fence(1, step), 1.0, HYPER, {}, 0.1)))


FACTS: tuple[AnyFact, ...] = (
    JobFact(JOB),
    ModelFact(ModelSpec((TensorSpec("w", (3,), "float32", Kind.PARAMETER, 0),), OptimizerSpec("SGD", HYPER), inf)),
    PlacementFact(Placement(2, ("server-0/1", "server-1/2"), {"server-0/1": "tcp://a", "server-1/2": "tcp://b"})),
    PhaseFact(PHASE, SEGMENT),
    PhaseFact(PHASE, SEGMENT, (SEGMENT,)),
    SegmentFact(3, 2, DialChange("asp", 2, 0.1, 0.0, 5, 0.0), "by hand", (SEGMENT,)),
    StopFact("enough", None),
    StopFact("enough", SEGMENT),
    ValidatorFact(ValidatorSpec(0, "accuracy", 10, 100, 10)),
    ClaimFact("save model.safetensors"),
    IncarnationFact(1, "i0000-v0000000004", POSITION, "server-0 died"),
    IncarnationFact(2, "", None, "resumed"),
    ScaleFact(3),
    DrainFact("host-b"),
    ChoiceFact(Sealed(3, 1, Fence(2, 9), 0.5, HYPER, {"loss": inf}, 0.25, {"topic": "text"})),
    WarningFact("topic", "text"),
    MemberFact("worker-0/1", "worker-0", "worker", "a", "lost", "killed"),
    CheckpointFact("i0000-v0000000003"),
    MarkFact(12.5, 3, 1, 64.0, {"worker-0": (0.1, 1.0)}),
    PolicyFact(DeclarePolicy(1, 0, PolicySpec(source="here", target="a>1"))),
    DataChangeFact(),
    BadRecordFact(0, BadRecord(3, 2, "damaged"), "worker-0"),
    DataFact("loop number 1", "worker-0", DataFingerprint(9, "", "cpu", ((0, "ab"), (8, "cd")))),
)
