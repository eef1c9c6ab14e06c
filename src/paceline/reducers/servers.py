"""The `servers` reducer: pushes gradients to parameter servers, before the seal and with it, and reads versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, cast

import torch

from paceline.core.effects import Send
from paceline.core.worker.dispatch import Fill, WorkerCore
from paceline.core.worker.turn import Task, WorkerState
from paceline.messages import BlockFrame, Grant, Push, Sealed
from paceline.reducers.base import Carried, Made
from paceline.reducers.model_blocks import ModelBlocks
from paceline.reducers.push_buffers import BufferLayout, PushBuffer, PushBuffers
from paceline.reducers.sealing import Offered, SealedContent, ServerPush, seal_offered, sealing_pushes
from paceline.telemetry import tracing
from paceline.types import INIT_STEP, BlockSpec, Kind, NodeId

_CACHED = 64  # the most lists of pushes that are kept for later turns
_PATIENCE = 8  # after this many turns in which an offered block had to be sent twice, nothing is offered any more
_NOTHING = Carried(frozenset(), (), ())
_READ = frozenset({WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING})


class Exchange(Protocol):
    """What this reducer needs of a worker's session."""

    @property
    def core(self) -> WorkerCore:
        """The core of the worker, which makes the messages."""
        ...

    def say(self, sends: Sequence[Send]) -> None:
        """Send without waiting."""
        ...

    def wait(self, states: frozenset[WorkerState], awaited: str, fill: Callable[[Fill], None]) -> WorkerState:
        """Wait until the core is in one of `states`, and call `fill` with the blocks that arrive."""
        ...

    def allocate(self, nbytes: int) -> memoryview:
        """Allocate memory that servers on this host can read without a copy."""
        ...

    def lent(self) -> Collection[int]:
        """The numbers of pushes whose payload the transport still reads."""
        ...


class ServersReducer:
    """The `Reducer` of parameter servers. `resent` counts the offered blocks that the last seal had to send again."""

    def __init__(self, session: Exchange, model: ModelBlocks) -> None:
        self.resent = 0
        self._session = session
        self._model = model
        trained = [b for b in model.blocks if b.kind != Kind.FROZEN]
        self._buffers = PushBuffers(BufferLayout(model.spec.tensors, trained), session.allocate)
        self._weight = 1.0
        self._is_initial = False
        self._offered: dict[int, BlockSpec] = {}
        self._turns_resent = 0
        self._buffer: PushBuffer | None = None
        self._sealed: SealedContent | None = None
        self._kept: SealedContent | None = None
        self._targets: Mapping[NodeId, tuple[int, ...]] = {}
        self._seals: dict[tuple[frozenset[int], float], list[ServerPush]] = {}

    @property
    def wants_offers(self) -> bool:
        """False after several turns in which the script changed offered blocks before the seal."""
        return self._turns_resent < _PATIENCE

    # ------------------------------------------------------------ the turn

    def begin(self, grant: Grant, weight: float, *, keep: bool = False) -> None:
        """Begin a turn; see `Reducer`."""
        self._kept = self._sealed if keep else None
        self._buffers.begin_turn()
        self._weight = weight
        self._is_initial = grant.step == INIT_STEP
        self._offered.clear()
        self._buffer = self._sealed = None

    def offer(self, values: Mapping[int, torch.Tensor], blocks: Sequence[BlockSpec]) -> None:
        """Push `blocks` provisionally; see `Reducer`."""
        targets = self._session.core.model.targets
        if self._buffer is None:
            self._buffer = self._take()
            self._note_placement()
        elif self._targets is not targets:
            return  # blocks have moved to other servers: the seal sends all of them
        with tracing.span("push", blocks=len(blocks), ahead=True):
            self._model.write(values, self._buffer, blocks)
            chosen = {b.index: b for b in blocks}
            self._offered.update(chosen)
            pushes = []
            for server, owned in targets.items():
                theirs = [chosen[i] for i in owned if i in chosen]
                if theirs:
                    frames = tuple(BlockFrame(b.index, b.dtype, b.numel) for b in theirs)
                    pushes.append(ServerPush(server, frames, None))
            self._push(pushes, self._weight, self._buffer, None)

    def seal(self, made: Made | None, report: Sealed) -> None:
        """Push with the seal all blocks that the servers do not have in their present state; see `Reducer`."""
        self.resent = 0
        if made is None:
            self._sealed = SealedContent(_NOTHING, 0.0, {}, None, None)
            self._push(self._known_seals(_NOTHING, 0.0), 0.0, None, None, report)
        elif self._is_initial:
            buffer = PushBuffer(BufferLayout(self._model.spec.tensors, self._model.blocks), self._session.allocate)
            self._model.write_all(made, buffer)
            self._push(self._make_seals(made.carried, self._weight, {}, ()), self._weight, buffer, None, report)
        elif self._offered:
            self._seal_rest(made, report)
        else:
            buffer = self._take()
            self._model.write_all(made, buffer)
            self._sealed = SealedContent(made.carried, self._weight, {}, buffer, None)
            self._push(self._known_seals(made.carried, self._weight), self._weight, buffer, None, report)

    def seal_again(self, report: Sealed, *, kept: bool = False) -> None:
        """Push the content of an earlier seal, with the seal, to the present servers of its blocks; see `Reducer`."""
        content = self._kept if kept else self._sealed
        assert content is not None
        carried, weight, revs, buffer, other = content
        self._push(self._make_seals(carried, weight, revs, ()), weight, buffer, other, report)

    def _seal_rest(self, made: Made, report: Sealed) -> None:
        """Seal a turn that has offered blocks: push the blocks that changed since, and those that were not offered."""
        assert self._buffer is not None
        moved = self._targets is not self._session.core.model.targets
        ahead = Offered(self._offered, self._buffer, moved)
        self._sealed = sealed = seal_offered(self._model, made, self._weight, ahead, self._take)
        self.resent = len(sealed.revs)
        self._turns_resent += bool(sealed.revs)
        pushes = self._make_seals(made.carried, self._weight, sealed.revs, self._offered.keys() - sealed.revs.keys())
        self._push(pushes, self._weight, sealed.buffer, sealed.other, report)

    def read(self, task: Task) -> None:
        """Wait until the blocks that the core pulls for its task are in the model; see `Reducer`."""
        self._session.wait(_READ, "answer while the model's state was read", self._fill)

    def _fill(self, fill: Fill) -> None:
        with tracing.span("fill"):
            self._model.fill(fill.frames, cast(Sequence[memoryview], fill.payload))

    # ------------------------------------------------------------ messages

    def _known_seals(self, carried: Carried, weight: float) -> list[ServerPush]:
        """The pushes of a turn that offered nothing. They are kept, since many turns have the same ones."""
        self._note_placement()
        seals = self._seals.get((carried.absent, weight))
        if seals is None:
            if len(self._seals) >= _CACHED:
                self._seals.clear()
            seals = self._seals[carried.absent, weight] = self._make_seals(carried, weight, {}, ())
        return seals

    def _note_placement(self) -> None:
        """Drop the pushes that are kept if the placement has changed."""
        targets = self._session.core.model.targets
        if self._targets is not targets:
            self._targets = targets
            self._seals.clear()

    def _make_seals(
        self, carried: Carried, weight: float, revs: Mapping[int, int], sent: Collection[int]
    ) -> list[ServerPush]:
        return sealing_pushes(self._session.core.model.targets, carried, weight, revs, sent)

    def _push(
        self,
        pushes: Sequence[ServerPush],
        weight: float,
        buffer: PushBuffer | None,
        other: PushBuffer | None,
        report: Sealed | None = None,
    ) -> None:
        """Send `pushes`. The blocks of revision 0 are in `buffer`, those of revision 1 in `other`."""
        parts = {}
        for server, frames, seal in pushes:
            payload = []
            for frame in frames:
                source = other if frame.rev else buffer
                assert source is not None
                payload.append(source.frames[frame.block])
            parts[server] = (frames, payload, seal)
        sends = self._session.core.push(time.monotonic(), parts, weight, report)
        for send in sends:
            assert isinstance(send.message, Push)
            for used in (buffer, other):
                if used is not None:
                    used.send(send.message.req)
        self._session.say(sends)

    def _take(self) -> PushBuffer:
        """Return a free buffer."""
        kept = self._kept
        in_use = (self._buffer,) if kept is None else (self._buffer, kept.buffer, kept.other)
        return self._buffers.take(self._session.core.transfers.unacked, self._session.lent(), in_use)
