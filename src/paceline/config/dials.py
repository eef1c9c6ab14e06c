"""The dials of a job: the training modes, the optimizers that servers can run, and the coordinator's settings."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.policies import NO_POLICIES, PolicySpec
from paceline.errors import UsageError
from paceline.types import UNLIMITED

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")
"""`torch.optim` classes that run on servers: element-wise, so that a tensor may be cut into blocks."""


ALLREDUCE = "allreduce"
"""The mode in which the workers hold the blocks, and sum the slots of a step by a collective."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A training mode: its name, its window, and how many slots a step has by default (None: one per worker)."""

    name: str
    window: int
    default_slots: int | None

    @property
    def in_group(self) -> bool:
        """Whether the slots of a step meet in a group of members, not on servers."""
        return self.name == ALLREDUCE


def parse_mode(text: str) -> Mode:
    """Read ``bsp``, ``ssp:K``, ``asp`` or ``allreduce``.

    Raises:
        UsageError: anything else.
    """
    head, _, tail = text.partition(":")
    if text == ALLREDUCE:
        return Mode(ALLREDUCE, 0, None)
    if text == "bsp":
        return Mode("bsp", 0, None)
    if text == "asp":
        return Mode("asp", UNLIMITED, 1)
    if head == "ssp" and tail.isdecimal():
        return Mode(f"ssp:{int(tail)}", int(tail), 1)
    raise UsageError(
        f"mode {text!r} is not known; use bsp, ssp:K (K steps of staleness, such as ssp:3), asp or allreduce"
    )


def same_lock_step(mode: str, other: str) -> bool:
    """Whether a run may be resumed in `other` instead of `mode`: both are lock-step, and only the reducer differs."""
    return {mode, other} <= {"bsp", ALLREDUCE}


def check_replicas(replicas: int, servers: int) -> None:
    """Check that there are enough servers for `replicas` copies of each block besides its primary.

    Raises:
        UsageError: there are not, or `replicas` is negative; the message names the options.
    """
    if replicas < 0:
        raise UsageError(f"--replicas must be 0 or more, not {replicas}")
    if replicas >= servers:
        raise UsageError(
            f"--replicas {replicas} needs {replicas + 1} servers, one for each copy of a block: --servers is {servers}"
        )


REACH_S = 3.0
"""Default of PACELINE_REACH_S: after so many seconds without an answer, a peer counts as unreachable."""

_AT_LEAST_1 = {
    "workers": "--workers",
    "servers": "--servers",
    "keep_checkpoints": "--keep",
    "hold": "ClusterSpec.hold",
    "max_losses": "ClusterSpec.max_losses",
}
"""Fields of `ClusterSpec` that must be 1 or more, each with the name by which an error shows it."""

_AT_LEAST_0 = {
    "checkpoint_steps": "--checkpoint-every",
    "checkpoint_s": "--checkpoint-every",
    "max_steps": "--max-steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The coordinator's settings.

    A checkpoint is due every `checkpoint_steps` versions, every `checkpoint_s` seconds (0 switches a rule off), and at
    the end of a phase; if both are 0, there are no checkpoints. With `rewinds` the loss of a block's last copy begins a
    new incarnation, otherwise it fails the job. `resume` is the folder of the checkpoint to begin from, "" to begin
    without a checkpoint, None to continue where the log ends. With `allow_changes`, a resumed job may have other data
    than before. The job ends after `max_steps` steps (0: no limit). Each block has `replicas` copies on servers other
    than its primary. A peer that does not answer for `reach_s` seconds counts as unreachable. With `same_cpu`, a
    process whose machine is not equal to that of the others is refused. `term` is the term of the place of the
    checkpoints, 0 for the run directory. With `collective`, each worker hosts a member, so the job may move to a group
    of members, which hold all blocks each; then `servers` may be 0. With `shares_memory`, processes of one host
    exchange tensors by shared memory. `policies` end or change the job by what it has done and by its results. With
    `tensorboard`, scalars are written for it; at `metrics_port` the coordinator serves metrics for Prometheus.
    """

    workers: int = 1
    servers: int = 1
    hold: int | None = None
    max_losses: int = 3
    heartbeat_s: float = 0.5
    heartbeat_timeout_s: float = 10.0
    grace_s: float = 0.3
    checkpoint_steps: int = 0
    checkpoint_s: float = 0.0
    keep_checkpoints: int = 3
    rewinds: bool = False
    resume: str | None = None
    max_steps: int = 0
    replicas: int = 0
    reach_s: float = REACH_S
    allow_changes: bool = False
    same_cpu: bool = False
    term: int = 0
    collective: bool = False
    shares_memory: bool = True
    policies: PolicySpec = NO_POLICIES
    tensorboard: bool = False
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for name, shown in _AT_LEAST_1.items():
            least = 0 if name == "servers" and self.collective else 1
            if (number := getattr(self, name)) is not None and number < least:
                raise UsageError(f"{shown} must be at least {least}, not {number}")
        for name, shown in _AT_LEAST_0.items():
            if (number := getattr(self, name)) < 0:
                raise UsageError(f"{shown} must be 0 or more, not {number}")
        if self.servers or self.replicas:
            check_replicas(self.replicas, self.servers)
        if self.heartbeat_timeout_s <= self.heartbeat_s:
            raise UsageError(
                f"PACELINE_HEARTBEAT_TIMEOUT_S ({self.heartbeat_timeout_s}) must exceed the heartbeat of "
                f"{self.heartbeat_s} s"
            )
        if self.reach_s <= self.heartbeat_s:
            raise UsageError(f"PACELINE_REACH_S ({self.reach_s}) must exceed the heartbeat of {self.heartbeat_s} s")

    @property
    def held(self) -> int:
        """How many slots of a step may be leased beyond the lowest slot that is not summed yet, on servers."""
        return self.hold if self.hold is not None else max(4, self.workers + 2)
