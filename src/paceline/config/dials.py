"""Methods of training as presets of a few dials."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.types import UNLIMITED

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")
"""`torch.optim` classes that run on servers: element-wise, so that a tensor may be cut into blocks."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A method by name. `window` and `default_slots` (None: one per worker) are its dials."""

    name: str
    window: int
    default_slots: int | None


def parse_mode(text: str) -> Mode:
    """Read ``bsp``, ``ssp:K`` or ``asp``.

    Raises:
        UsageError: anything else.
    """
    head, _, tail = text.partition(":")
    if text == "bsp":
        return Mode("bsp", 0, None)
    if text == "asp":
        return Mode("asp", UNLIMITED, 1)
    if head == "ssp" and tail.isdecimal():
        return Mode(f"ssp:{int(tail)}", int(tail), 1)
    raise UsageError(f"mode {text!r} is not known; use bsp, ssp:K (K steps of staleness, such as ssp:3) or asp")


def check_replicas(replicas: int, servers: int) -> None:
    """Refuse more copies than there are servers for.

    Raises:
        UsageError: names both knobs.
    """
    if replicas < 0:
        raise UsageError(f"--replicas must not be negative, not {replicas}")
    if replicas >= servers:
        raise UsageError(
            f"--replicas {replicas} needs {replicas + 1} servers, each copy on one of its own: --servers is {servers}"
        )


REACH_S = 3.0
"""Default of PACELINE_REACH_S: how long a peer may leave another without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The coordinator's settings.

    A checkpoint is due every `checkpoint_steps` versions and every `checkpoint_s` seconds (0: not by that), and at the
    end of a phase; if both are 0, there are none. With `rewinds` the loss of a block's last copy begins a new
    incarnation, else it fails the job. `resume` is the folder of the checkpoint to begin from, "" for no checkpoint,
    None to go on where the log ends. `max_steps` ends the job early (0: not). Each block has `replicas` copies on
    servers other than its primary. A peer that does not answer for `reach_s` counts as unreachable.
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

    def __post_init__(self) -> None:
        for name in ("workers", "servers", "max_losses"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("checkpoint_steps", "checkpoint_s", "max_steps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, not {getattr(self, name)}")
        check_replicas(self.replicas, self.servers)
        if self.keep_checkpoints < 1:
            raise UsageError(f"keep_checkpoints must be at least 1, not {self.keep_checkpoints}")
        if self.hold is not None and self.hold < 1:
            raise UsageError(f"hold must be at least 1, not {self.hold}")
        if self.heartbeat_timeout_s <= self.heartbeat_s:
            raise UsageError(
                f"heartbeat_timeout_s ({self.heartbeat_timeout_s}) must exceed heartbeat_s ({self.heartbeat_s})"
            )
        if self.reach_s <= self.heartbeat_s:
            raise UsageError(f"PACELINE_REACH_S ({self.reach_s}) must exceed the heartbeat of {self.heartbeat_s} s")

    @property
    def held(self) -> int:
        """Slots of a step that may be in flight beyond the lowest one not yet summed."""
        return self.hold if self.hold is not None else max(4, self.workers + 2)
