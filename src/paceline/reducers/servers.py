"""The `servers` reducer: pushes to parameter servers ahead of the seal and with it, and reads from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import torch

from paceline.blocks.memcpy import flat
from paceline.core.effects import Send
from paceline.core.worker.dispatch import Fill, WorkerCore
from paceline.core.worker.turn import Task, WorkerState
from paceline.messages import BlockFrame, Grant, Push, Seal
from paceline.reducers.base import Carried, Made
from paceline.reducers.push_buffers import BufferLayout, PushBuffer, PushBuffers
from paceline.telemetry import tracing
from paceline.types import INIT_STEP, BlockSpec, Kind, ModelSpec, NodeId

_CACHED = 64  # seals that are the same for each turn
_PATIENCE = 8  # turns in which an offered block had to be sent twice
_NOTHING = Carried(frozenset(), (), ())
_READ = frozenset({WorkerState.COMPUTING, WorkerState.OVER, WorkerState.INITIALISING})


class Exchange(Protocol):
    """What this reducer needs of a worker's session."""

    @property
    def core(self) -> WorkerCore:
        """The worker's protocol."""
        ...

    def say(self, sends: Sequence[Send]) -> None:
        """Send without waiting."""
        ...

    def wait(self, states: frozenset[WorkerState], awaited: str, fill: Callable[[Fill], None]) -> WorkerState:
        """Wait until the core is in one of `states`, and `fill` with the blocks that arrive."""
        ...

    def allocate(self, nbytes: int) -> memoryview:
        """Memory that the transport can lend to servers of this host."""
        ...

    def lent(self) -> Collection[int]:
        """Pushes whose payload the transport still reads."""
        ...


class ModelBlocks(Protocol):
    """What this reducer needs of the script's model."""

    @property
    def spec(self) -> ModelSpec:
        """Its tensors."""
        ...

    @property
    def blocks(self) -> Sequence[BlockSpec]:
        """All its blocks."""
        ...

    def write_all(self, made: Made, into: PushBuffer) -> None:
        """Copy everything that the turn made."""
        ...

    def write(self, values: Mapping[int, torch.Tensor], into: PushBuffer, blocks: Iterable[BlockSpec]) -> None:
        """Copy the part of `values`, by tensor number, that lies in `blocks`."""
        ...

    def holds(self, buffer: PushBuffer, block: BlockSpec, values: Mapping[int, torch.Tensor]) -> bool:
        """Whether `block` in `buffer` has the bits of `values`."""
        ...

    def fill(self, frames: Sequence[BlockFrame], payload: Sequence[memoryview]) -> None:
        """Put blocks of a version into the model. Nothing of `payload` is read after the call."""
        ...


class _ServerPush(NamedTuple):
    """A push to one server without its payload."""

    server: NodeId
    frames: tuple[BlockFrame, ...]
    seal: Seal | None


class _Sealed(NamedTuple):
    """What a turn was sealed with: blocks of rev 0 are in `buffer`, those of rev 1 in `other`."""

    carried: Carried
    weight: float
    revs: Mapping[int, int]
    buffer: PushBuffer | None
    other: PushBuffer | None


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
        self._sealed: _Sealed | None = None
        self._by_server: Mapping[NodeId, tuple[int, ...]] = {}
        self._seals: dict[tuple[frozenset[int], float], list[_ServerPush]] = {}

    @property
    def wants_offers(self) -> bool:
        """False after some turns in which offered blocks changed before the seal."""
        return self._turns_resent < _PATIENCE

    # ------------------------------------------------------------ the turn

    def begin(self, grant: Grant, weight: float) -> None:
        """Begin a turn; see `Reducer`."""
        self._buffers.begin_turn()
        self._weight = weight
        self._is_initial = grant.step == INIT_STEP
        self._offered.clear()
        self._buffer = self._sealed = None

    def offer(self, values: Mapping[int, torch.Tensor], blocks: Sequence[BlockSpec]) -> None:
        """Push `blocks` provisionally; see `Reducer`."""
        by_server = self._session.core.model.by_server
        if self._buffer is None:
            self._buffer = self._take()
            self._note_placement()
        elif self._by_server is not by_server:
            return  # blocks have moved: the seal sends all of them
        with tracing.span("push", blocks=len(blocks), ahead=True):
            self._model.write(values, self._buffer, blocks)
            chosen = {b.index: b for b in blocks}
            self._offered.update(chosen)
            pushes = []
            for server, owned in by_server.items():
                theirs = [chosen[i] for i in owned if i in chosen]
                if theirs:
                    frames = tuple(BlockFrame(b.index, b.dtype, b.numel) for b in theirs)
                    pushes.append(_ServerPush(server, frames, None))
            self._push(pushes, self._weight, self._buffer, None)

    def seal(self, made: Made | None) -> None:
        """Push the blocks that were not offered as they are now, with the seal; see `Reducer`."""
        self.resent = 0
        if made is None:
            self._sealed = _Sealed(_NOTHING, 0.0, {}, None, None)
            self._push(self._known_seals(_NOTHING, 0.0), 0.0, None, None)
        elif self._is_initial:
            buffer = PushBuffer(BufferLayout(self._model.spec.tensors, self._model.blocks), self._session.allocate)
            self._model.write_all(made, buffer)
            self._push(self._make_seals(made.carried, self._weight, {}, ()), self._weight, buffer, None)
        elif self._offered:
            self._seal_rest(made)
        else:
            buffer = self._take()
            self._model.write_all(made, buffer)
            self._sealed = _Sealed(made.carried, self._weight, {}, buffer, None)
            self._push(self._known_seals(made.carried, self._weight), self._weight, buffer, None)

    def seal_again(self) -> None:
        """Push the last seal and its content to the blocks' present servers; see `Reducer`."""
        assert self._sealed is not None
        carried, weight, revs, buffer, other = self._sealed
        self._push(self._make_seals(carried, weight, revs, ()), weight, buffer, other)

    def _seal_rest(self, made: Made) -> None:
        """Push the blocks that were not offered, and again those that have changed since."""
        assert self._buffer is not None
        moved = self._by_server is not self._session.core.model.by_server
        values = {n: flat(v, v.dtype) for n, v in made.values.items()}
        offered = [b for b in made.carried.blocks if b.index in self._offered]
        again = [b for b in offered if moved or not self._model.holds(self._buffer, b, values)]
        self.resent = len(again)
        self._turns_resent += bool(again)
        other = None
        if again:
            other = self._take()  # servers may read the first buffer: what is in it must not change
            self._model.write(values, other, again)
        rest = [b for b in made.carried.blocks if b.index not in self._offered]
        self._model.write(values, self._buffer, rest)
        revs = {b.index: 1 for b in again}
        self._sealed = _Sealed(made.carried, self._weight, revs, self._buffer, other)
        pushes = self._make_seals(made.carried, self._weight, revs, self._offered.keys() - revs.keys())
        self._push(pushes, self._weight, self._buffer, other)

    def read(self, task: Task) -> None:
        """Wait until the blocks that the core pulls for its task are in the model; see `Reducer`."""
        self._session.wait(_READ, "answer while the model's state was read", self._fill)

    def _fill(self, fill: Fill) -> None:
        with tracing.span("fill"):
            self._model.fill(fill.frames, cast(Sequence[memoryview], fill.payload))

    # ------------------------------------------------------------ messages

    def _known_seals(self, carried: Carried, weight: float) -> list[_ServerPush]:
        """The seals of a turn that offered nothing: they are the same for each such turn of one placement."""
        self._note_placement()
        seals = self._seals.get((carried.absent, weight))
        if seals is None:
            if len(self._seals) >= _CACHED:
                self._seals.clear()
            seals = self._seals[carried.absent, weight] = self._make_seals(carried, weight, {}, ())
        return seals

    def _note_placement(self) -> None:
        by_server = self._session.core.model.by_server
        if self._by_server is not by_server:
            self._by_server = by_server
            self._seals.clear()

    def _make_seals(
        self, carried: Carried, weight: float, revs: Mapping[int, int], sent: Collection[int]
    ) -> list[_ServerPush]:
        """A push for every server: its seal names all its blocks, its frames are those that are not `sent`."""
        pushes = []
        chosen = {b.index: b for b in carried.blocks}
        for server, owned in self._session.core.model.by_server.items():
            theirs = [chosen[i] for i in owned if i in chosen]
            tensors = {p.tensor for b in theirs for p in b.pieces}
            absent = tuple(sorted(tensors & carried.absent))
            seal = Seal(weight, absent, tuple((b.index, revs.get(b.index, 0)) for b in theirs))
            frames = (
                BlockFrame(b.index, b.dtype, b.numel, revs.get(b.index, 0)) for b in theirs if b.index not in sent
            )
            pushes.append(_ServerPush(server, tuple(frames), seal))
        return pushes

    def _push(
        self, pushes: Sequence[_ServerPush], weight: float, buffer: PushBuffer | None, other: PushBuffer | None
    ) -> None:
        """Send `pushes`, with blocks of rev 0 from `buffer` and those of rev 1 from `other`."""
        parts = {}
        for server, frames, seal in pushes:
            payload = []
            for frame in frames:
                source = other if frame.rev else buffer
                assert source is not None
                payload.append(source.frames[frame.block])
            parts[server] = (frames, payload, seal)
        sends = self._session.core.push(time.monotonic(), parts, weight)
        for send in sends:
            assert isinstance(send.message, Push)
            for used in (buffer, other):
                if used is not None:
                    used.send(send.message.req)
        self._session.say(sends)

    def _take(self) -> PushBuffer:
        """A buffer that nothing reads."""
        return self._buffers.take(self._session.core.transfers.unacked, self._session.lent(), self._buffer)
