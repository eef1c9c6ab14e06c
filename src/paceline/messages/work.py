"""Leases: how a worker enters a loop, asks for slots, reports what it did, and learns that there are no more."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.types import Fence, Hyper, PhaseSpec, Segment, Sums


class ValidatorSpec(msgspec.Struct, frozen=True, array_like=True):
    """A validation that the system runs every `every` versions (0: only when `evaluate` asks)."""

    number: int
    name: str
    every: int
    data_len: int
    batch_size: int


class Declare(Message, frozen=True):
    """A worker's n-th validator; all workers must declare the same."""

    req: int
    validator: ValidatorSpec


class BeginPhase(Message, frozen=True):
    """A worker enters its n-th `batches`."""

    req: int
    phase: PhaseSpec


class PhaseBegun(Message, frozen=True):
    """Reply to `BeginPhase`: `segment` is None when the job is over."""

    req: int
    generation: int
    segment: Segment | None


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """What a worker tells the coordinator of a slot it has sealed."""

    step: int
    slot: int
    fence: Fence
    weight: float
    hyper: Hyper
    logs: dict[str, float]
    seconds: float


class Evaluated(msgspec.Struct, frozen=True, array_like=True):
    """The sums of one validation slot."""

    round: int
    slot: int
    fence: Fence
    sums: dict[str, Sums]


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease that a worker still holds: in hand, or sealed (then with its report) on a step it knows no commit of."""

    step: int
    slot: int
    fence: Fence
    sealed: Sealed | None = None
    epoch: int = 0


class Turn(Message, frozen=True):
    """Report what was done and ask for the next lease: one message a turn.

    `phase` is the phase the worker is in; `evaluation` is the number of the validator whose result it waits for
    instead, -1 for none. `abandoned` hands a lease back without work. `declared` is how many validators it knows,
    of which another coordinator may have heard.
    """

    req: int
    phase: int
    incarnation: int
    sealed: Sealed | None = None
    evaluated: Evaluated | None = None
    abandoned: Fence | None = None
    evaluation: int = -1
    declared: int = 0


class Grant(Message, frozen=True):
    """A lease of one training slot. `version` is what lock-step must read; with a window, anything new enough."""

    req: int
    generation: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    slots: int
    fence: Fence
    segment: Segment | None
    lead: bool


class EvalGrant(Message, frozen=True):
    """A lease of one validation slot, pinned to `version`."""

    req: int
    generation: int
    incarnation: int
    epoch: int
    round: int
    validator: int
    slot: int
    fence: Fence
    version: int
    lead: bool


class Revoke(Message, frozen=True):
    """A lease is void: its slot will not be computed after all."""

    generation: int
    fence: Fence


class GiveBack(Message, frozen=True):
    """A server refused a push of this attempt: it will never count, and its slot must be leased again."""

    req: int
    fence: Fence


class PhaseOver(Message, frozen=True):
    """No more slots in this phase (or in the job). Read `version` and leave the loop."""

    req: int
    generation: int
    incarnation: int
    epoch: int
    phase: int
    version: int
    step: int
    finished: bool
    lead: bool
    metrics: dict[str, float]


class EvalOver(Message, frozen=True):
    """The result of an evaluation that a worker asked for."""

    req: int
    generation: int
    validator: int
    version: int
    metrics: dict[str, float]


class Stop(Message, frozen=True):
    """End the job: after step `step`, or at the last committed version when `at_once`. Observers may ask for it too."""

    req: int
    reason: str
    step: int
    at_once: bool = False


class Claim(Message, frozen=True):
    """Ask to be the one worker that does `key`; others wait until it is done."""

    req: int
    key: str


class Claimed(Message, frozen=True):
    """`mine`: do it and say `ClaimDone`. Otherwise somebody has done it."""

    req: int
    mine: bool


class ClaimDone(Message, frozen=True):
    """The claimed thing is done."""

    req: int
    key: str
