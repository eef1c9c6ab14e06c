"""Cores for unit tests, and messages with defaults for their less interesting fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import Effect, FactRow, Send, Write
from paceline.core.layout import cut
from paceline.core.message_parts import PART_NBYTES
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.core.server.dispatch import ServerCore
from paceline.core.worker.dispatch import Connect, Fill, WorkerCore
from paceline.core.worker.turn import WorkerState
from paceline.errors import CheckpointError
from paceline.messages import (
    Assign,
    BeginPhase,
    BlockFrame,
    Checkpoint,
    Committed,
    CopyFrame,
    EvalGrant,
    Evaluated,
    Grant,
    JobArgs,
    Message,
    PhaseOver,
    Plan,
    Prepare,
    Push,
    Ready,
    Register,
    Seal,
    Sealed,
    SumMeta,
    Turn,
)
from paceline.sim.disk import Disk
from paceline.types import (
    INIT_STEP,
    BlockSpec,
    Commit,
    Fence,
    Hyper,
    Kind,
    ModelSpec,
    NodeId,
    OptimizerSpec,
    PhaseSpec,
    Placement,
    Segment,
    Sums,
    TensorSpec,
)

M = TypeVar("M", bound=Message)
R = TypeVar("R")

HYPER: Hyper = ({"lr": 0.1},)
TENSORS = (
    TensorSpec("weight", (20_000,), "float32", Kind.PARAMETER, 0),
    TensorSpec("bias", (100,), "float32", Kind.PARAMETER, 0),
)
BLOCKS = cut(TENSORS)


def model(*, deterministic: bool = True, tensors: tuple[TensorSpec, ...] = TENSORS) -> ModelSpec:
    return ModelSpec(tensors, OptimizerSpec("SGD", HYPER), None, deterministic)


def segment(**changes: object) -> Segment:
    base = Segment(
        step=0,
        phase=0,
        epoch=0,
        offset=0,
        end_step=5,
        end_epoch=1,
        data_len=20,
        slots=2,
        batch_size=2,
        shuffle=True,
        drop_last=False,
        window=0,
        mode="bsp",
    )
    return msgspec.structs.replace(base, **changes)


def fence(counter: int, generation: int = 1) -> Fence:
    return Fence(generation, counter)


def state_of(core: WorkerCore) -> WorkerState:
    """Return the state; a function, so that a type checker does not narrow it by an earlier assertion."""
    return core.state


def turn_of(core: WorkerCore) -> Turn:
    """Return the open turn of the worker."""
    assert core.requests.turn is not None
    return core.requests.turn.message


def sent(effects: Sequence[Effect | Send | Fill | Connect], kind: type[M], to: NodeId | None = None) -> list[M]:
    """The messages of one kind among `effects`."""
    return [
        e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind) and (to is None or e.to == to)
    ]


def written(effects: Sequence[Effect], kind: type[R]) -> list[R]:
    """The rows, or facts, of one kind among `effects`."""
    rows = [e.row.fact if isinstance(e.row, FactRow) else e.row for e in effects if isinstance(e, Write)]
    return [row for row in rows if isinstance(row, kind)]


# ---------------------------------------------------------------- a server


class Recorder:
    """A `BlockStore`, and all its parts, that records its calls."""

    def __init__(self) -> None:
        self.added: list[tuple[SumKey, float, dict[int, object]]] = []
        self.names: list[tuple[int, Fence | None, dict[int, int]]] = []
        self.anticipated: list[tuple[SumKey, int, Fence, float, dict[int, tuple[int, object]]]] = []
        self.applied: list[tuple[SumKey, Commit]] = []
        self.dropped: list[SumKey] = []
        self.made_early: list[tuple[SumKey, Hyper]] = []
        self.kept: list[int] = []
        self.released: list[int] = []
        self.blocks: list[int] = []
        self.loaded: list[tuple[str, int]] = []
        self.saved: list[int] = []
        self.damaged = ""
        self.installed: list[tuple[SumKey, tuple[object, ...]]] = []
        self.copied: list[tuple[int, tuple[object, ...]]] = []

    @property
    def sums(self) -> Recorder:
        return self

    versions = copies = checkpoints = group_sums = sums

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        self.blocks = [b.index for b in blocks]

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        if folder == self.damaged:
            raise CheckpointError(folder, "damaged")
        self.loaded.append((folder, version))
        return {b: folder.encode() for b in self.blocks}

    def contribute(self, step: int, num_slots: int, attempts: Sequence[SealedAttempt]) -> object:
        return tuple((attempt.slot, attempt.fence) for attempt in attempts)

    def adopt(self, key: SumKey, reduced: object, ranks: Sequence[int]) -> tuple[Fence | None, ...]:
        found = dict(cast(tuple[tuple[int, Fence], ...], reduced))
        return tuple(found.get(slot) for slot in range(len(ranks)))

    def save(self, version: int, without: Collection[int] = ()) -> None:
        self.saved.append(version)

    def freeze(self) -> list[int]:
        return self.blocks

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        self.anticipated.append((key, slot, fence, weight, dict(payloads)))

    def add(self, key: SumKey, attempt: SealedAttempt) -> None:
        self.added.append((key, attempt.weight, dict(attempt.payloads)))
        self.names.append((attempt.slot, attempt.fence, dict(attempt.revs or {})))

    @property
    def ahead(self) -> int:
        return -1

    def update_early(self, key: SumKey, hyper: Hyper) -> bool:
        self.made_early.append((key, hyper))
        return False

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        return ()

    def apply(self, key: SumKey, commit: Commit) -> None:
        self.applied.append((key, commit))

    def drop(self, key: SumKey) -> None:
        self.dropped.append(key)

    def keep(self, version: int) -> None:
        self.kept.append(version)

    def release(self, version: int) -> None:
        self.released.append(version)

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        chosen = self.blocks if blocks is None else list(blocks)
        return tuple(frame(b) for b in chosen), tuple(f"{b}@{version}" for b in chosen)

    def export(self, key: SumKey, blocks: Sequence[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[object]]:
        return SumMeta(1.0, 1), tuple(frame(b) for b in blocks), tuple(f"sum {key.step}:{b}" for b in blocks)

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        self.installed.append((key, tuple(payload)))

    def copy_out(self, blocks: Sequence[int]) -> tuple[tuple[CopyFrame, ...], Sequence[object]]:
        frames = tuple(CopyFrame(b, -1, "", BLOCKS[b].dtype, BLOCKS[b].numel) for b in blocks)
        return frames, tuple(f"copy of {b}" for b in blocks)

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        self.copied.append((version, tuple(payload)))

    def take(self, blocks: Sequence[int]) -> object:
        self.blocks = [b for b in self.blocks if b not in blocks]
        return list(blocks)

    def put(self, version: int, taken: object) -> None:
        assert isinstance(taken, list)
        self.blocks += taken


def plan(*segments: Segment, generation: int = 1, final: int = -1, revision: int | None = None) -> Plan:
    """Return a plan as a coordinator makes it: each revision appends a segment."""
    return Plan(generation, segments, final, 0, len(segments) if revision is None else revision)


def frame(block: int, rev: int = 0) -> BlockFrame:
    return BlockFrame(block, BLOCKS[block].dtype, BLOCKS[block].numel, rev)


class ServerKit:
    """A server core that is the primary of all blocks; the test plays all other members."""

    def __init__(
        self,
        *segments: Segment,
        one_attempt: bool = False,
        hold: int = 0,
        initialised: bool = True,
        part_nbytes: int = PART_NBYTES,
    ) -> None:
        self.store = Recorder()
        self.core = ServerCore("server-0", lambda: self.store, part_nbytes=part_nbytes)
        self.requests = 0
        placement = Placement(1, ("server-0",) * len(BLOCKS), {"server-0": "here"})
        self.tell(Assign(1, 0, placement, model(), BLOCKS, one_attempt, hold))
        self.tell(plan(*(segments or (segment(),))))
        if initialised:
            self.push(INIT_STEP, 0, 1, base=-1)
            self.commit(0, INIT_STEP, 1)

    def tell(self, message: Message) -> list[Send]:
        """Send a message of the coordinator to the server."""
        return self.core.handle("coordinator", message, (), 0.0)

    def say(self, message: Message, payload: Sequence[object] = (), sender: NodeId = "worker-0") -> list[Send]:
        """Send a message of a worker to the server."""
        return self.core.handle(sender, message, payload, 0.0)

    def push(
        self,
        step: int,
        slot: int,
        counter: int,
        *,
        base: int | None = None,
        revs: Mapping[int, int] | None = None,
        sealed: Mapping[int, int] | None = None,
        seal: bool = True,
        content: str = "",
        weight: float = 1.0,
        **changes: object,
    ) -> list[Send]:
        """Push all blocks (or those of `revs`), sealed with these revisions or with those of `sealed`."""
        self.requests += 1
        frames = {b.index: 0 for b in BLOCKS} if revs is None else revs
        ends = Seal(weight, (), tuple((frames if sealed is None else sealed).items())) if seal else None
        push = Push(
            self.requests,
            0,
            1,
            step,
            slot,
            fence(counter),
            step if base is None else base,
            tuple(frame(b, r) for b, r in frames.items()),
            ends,
            weight,
        )
        push = msgspec.structs.replace(push, **changes)
        return self.say(push, tuple(f"{content or counter}:{b}:{r}" for b, r in frames.items()))

    def commit(self, version: int, step: int, *counters: int, pin: bool = False, keep: bool = False) -> list[Send]:
        row = Commit(0, version, step, tuple(fence(c) for c in counters), HYPER, 1.0, pin, 0, 0)
        return self.tell(Committed(1, self.core.assignment.epoch, row, keep))

    def slots_added(self, step: int) -> list[str]:
        """The attempts that were added to the sums of a step, in order."""
        return [str(payloads[0]).split(":")[0] for key, _, payloads in self.store.added if key.step == step]


# ---------------------------------------------------------------- a coordinator


class CoordinatorKit:
    """A coordinator core for tests; the test plays its servers and workers."""

    def __init__(
        self,
        *,
        workers: int = 2,
        servers: int = 1,
        mode: str = "bsp",
        slots: int | None = 2,
        deterministic: bool = True,
        tensors: tuple[TensorSpec, ...] = TENSORS,
        hold: int | None = None,
        max_losses: int = 3,
        hosts: Mapping[NodeId, str] | None = None,
        machines: Mapping[NodeId, str] | None = None,
        **spec: Any,
    ) -> None:
        """`hosts` and `machines` name the host and the fingerprint of members; others are on one host."""
        self.hosts = dict(hosts or {})
        self.machines = dict(machines or {})
        self.spec = ClusterSpec(workers=workers, servers=servers, hold=hold, max_losses=max_losses, **spec)
        self.core = CoordinatorCore(self.spec, 1)
        self.disk = Disk()
        self.job = JobArgs(7, mode, slots, 1)
        self.model = model(deterministic=deterministic, tensors=tensors)
        self.now = 0.0
        self.requests = 0
        holder = "member" if self.spec.collective else "server"
        self.servers = [f"{holder}-{i}" for i in range(servers)]
        self.workers = [f"worker-{i}" for i in range(workers)]

    def req(self) -> int:
        self.requests += 1
        return self.requests

    def say(self, sender: NodeId, message: Message) -> list[Effect]:
        return self.wrote(self.core.handle(sender, message, (), self.now))

    def wrote(self, effects: list[Effect]) -> list[Effect]:
        """Keep the rows that would survive the coordinator's death."""
        for effect in effects:
            if isinstance(effect, Write):
                self.disk.write(effect)
        return effects

    def restart(self, checkpoints: Sequence[Checkpoint] = (), **spec: Any) -> None:
        """Replace the coordinator by a new one that starts from the kept rows."""
        generation = self.core.generation + 1
        self.core = CoordinatorCore(replace(self.spec, **spec), generation, self.disk.history(), checkpoints)
        self.wrote(self.core.start(self.now))

    def start(self, *, begin: bool = True, **phase: object) -> CoordinatorKit:
        """Let all members register, and all workers prepare and enter the first phase."""
        for server in self.servers:
            self.say(server, self.registration("server", server))
        for worker in self.workers:
            self.join(worker)
        if begin:
            for worker in self.workers:
                self.begin(worker, **phase)
        return self

    def registration(self, role: str, node: NodeId, **changes: object) -> Register:
        """The first message of a server or worker, from its host."""
        host, machine = self.hosts.get(node, "here"), self.machines.get(node, "")
        intro = Register(self.req(), role, node, 1, host, fingerprint=machine)
        mine = {"address": "there"} if role == "server" else {"job": self.job}
        return msgspec.structs.replace(intro, **mine, **changes)

    def join(self, worker: NodeId) -> list[Effect]:
        effects = self.say(worker, self.registration("worker", worker))
        return effects + self.say(worker, Prepare(self.req(), self.model))

    def begin(self, worker: NodeId, **changes: object) -> list[Effect]:
        phase = PhaseSpec(0, 12, 2, None, 1, True, False)
        return self.say(worker, BeginPhase(self.req(), msgspec.structs.replace(phase, **changes)))

    def turn(self, worker: NodeId, **changes: object) -> list[Effect]:
        return self.say(worker, msgspec.structs.replace(Turn(self.req(), 0, 0), **changes))

    def lease(self, worker: NodeId, **changes: object) -> Grant:
        """Send a turn; return the training slot that answers it at once."""
        (grant,) = sent(self.turn(worker, **changes), Grant, worker)
        return grant

    def seal(
        self,
        worker: NodeId,
        grant: Grant,
        *,
        hyper: Hyper = HYPER,
        logs: dict[str, float] | None = None,
        **changes: object,
    ) -> list[Effect]:
        report = Sealed(grant.step, grant.slot, grant.fence, 1.0, hyper, logs or {}, 0.1)
        return self.turn(worker, sealed=report, **changes)

    def ready(self, server: NodeId, step: int, *fences: Fence) -> list[Effect]:
        revision = 0 if step == INIT_STEP else self.core.schedule.revision_of(step)
        return self.say(server, Ready(0, self.core.tables.placed.epoch, step, fences, 0, 0, (), (), revision))

    def initialise(self) -> CoordinatorKit:
        """Commit version 0; no worker holds a lease afterwards."""
        return self.initialise_with(*self.servers)

    def initialise_with(self, *servers: NodeId) -> CoordinatorKit:
        """Commit version 0 in a job in which only `servers` hold blocks."""
        worker = self.workers[0]
        grant = self.lease(worker)
        assert grant.step == INIT_STEP
        self.seal(worker, grant)
        for server in servers:
            self.ready(server, INIT_STEP, grant.fence)
        assert self.core.version == 0
        self.core.tables.leases.abandon_open(worker)
        return self

    def finish_step(self, step: int, phase: int = 0, logs: dict[str, float] | None = None) -> list[Effect]:
        """Let the workers compute the open slots of a lock-step step in turn; then all servers report ready."""
        worker, effects = self.workers[0], []
        while self.core.watermark.low == step:
            grants = sent(self.turn(worker, phase=phase), Grant, worker)
            if not grants or grants[0].step != step:
                break
            effects += self.seal(worker, grants[0], logs=logs, phase=phase)
        for server in self.core.placement.addresses if self.core.placement else ():
            effects += self.ready(server, step, *([fence(99)] * self.core.schedule.num_slots(step)))
        return effects

    def over(self, effects: Sequence[Effect]) -> list[PhaseOver]:
        return sent(effects, PhaseOver)

    def evaluated(
        self, worker: NodeId, grant: EvalGrant, sums: dict[str, Sums] | None = None, **changes: object
    ) -> list[Effect]:
        report = Evaluated(grant.round, grant.slot, grant.fence, sums or {})
        return self.turn(worker, evaluated=report, **changes)
