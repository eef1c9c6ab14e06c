"""What a worker sends of a turn: blocks ahead of the seal, the seal, and the memory they are sent from."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from paceline.core.effects import Send
from paceline.messages import BlockFrame, Push, Seal
from paceline.telemetry import tracing
from paceline.transport.base import Delivery
from paceline.types import BlockSpec, NodeId
from paceline.worker.binding import Binding, Carried, Made
from paceline.worker.memcpy import flat
from paceline.worker.push_buffers import Stage
from paceline.worker.session import Session

_IDLE_TURNS = 64  # a stage that was not needed for so long goes back
_MEMORISED = 64  # messages without their frames
_NOTHING = Carried(frozenset(), (), ())


class _Letter(NamedTuple):
    """A push to one server without its memory."""

    server: NodeId
    frames: tuple[BlockFrame, ...]
    seal: Seal | None


class _Sealed(NamedTuple):
    """What a turn was sealed with: blocks of rev 0 are in `stage`, those of rev 1 in `other`."""

    carried: Carried
    weight: float
    revs: Mapping[int, int]
    stage: Stage | None
    other: Stage | None


class Pushes:
    """The pushes of one worker, turn by turn.

    Stages are used in turn and written only when nobody reads them. There are as many as slots of this worker wait to
    be summed, which the protocol bounds (`hold` in lock-step, the window otherwise). Waiting here for one of them
    instead could last forever: the slot that the others wait for may be the one that is being sealed.

    `weight` is that of the turn's slot, if it is not empty. `resent` counts the blocks of the last turn that had
    changed after they were sent.
    """

    def __init__(self, session: Session, binding: Binding) -> None:
        self.weight = 1.0
        self.resent = 0
        self._session = session
        self._binding = binding
        self._stages: list[Stage] = []
        self._sources: dict[int, tuple[Stage, ...]] = {}
        self._turn = 0
        self._ahead: dict[int, BlockSpec] = {}
        self._stage: Stage | None = None
        self._sealed: _Sealed | None = None
        self._mine: Mapping[NodeId, tuple[int, ...]] = {}
        self._letters: dict[tuple[frozenset[int], float], list[_Letter]] = {}
        session.on_push = self._lent

    def begin(self, weight: float) -> None:
        """A turn whose slot has this weight begins. What the last one sent ahead and did not seal is void."""
        self._turn += 1
        self.weight = weight
        self._ahead.clear()
        self._stage = self._sealed = None

    # ------------------------------------------------------------ sending

    def send_ahead(self, values: Mapping[int, torch.Tensor], blocks: Sequence[BlockSpec]) -> None:
        """Send blocks of parameters whose gradients are there, though they may still change. Never waits."""
        mine = self._session.core.model.by_server
        if self._stage is None:
            self._stage = self._take()
            self._place(mine)
        elif self._mine is not mine:
            return  # the blocks have moved: the seal sends all of them
        with tracing.span("push", blocks=len(blocks), ahead=True):
            self._binding.write(values, self._stage, blocks)
            chosen = {b.index: b for b in blocks}
            self._ahead.update(chosen)
            letters = []
            for server, owned in mine.items():
                theirs = [chosen[i] for i in owned if i in chosen]
                if theirs:
                    frames = tuple(BlockFrame(b.index, b.dtype, b.numel) for b in theirs)
                    letters.append(_Letter(server, frames, None))
            self._session.say(self._push(letters, self.weight, self._stage, None))

    def seal(self, made: Made | None) -> list[Send]:
        """What ends the attempt: the blocks that are not on their way as they are now. None is an empty slot."""
        self.resent = 0
        if made is None:
            self._sealed = _Sealed(_NOTHING, 0.0, {}, None, None)
            return self._push(self._known(_NOTHING, 0.0), 0.0, None, None)
        if self._ahead:
            return self._seal_rest(made)
        stage = self._take()
        self._binding.write_all(made, stage)
        self._sealed = _Sealed(made.carried, self.weight, {}, stage, None)
        return self._push(self._known(made.carried, self.weight), self.weight, stage, None)

    def seal_again(self) -> list[Send]:
        """The turn that was sealed last, as it was, for another attempt at its slot; until the next turn begins."""
        assert self._sealed is not None
        carried, weight, revs, stage, other = self._sealed
        return self._push(self._seals(carried, weight, revs, ()), weight, stage, other)

    def initial(self) -> list[Send]:
        """The weights as they are: they become version 0."""
        stage = self._binding.initial(self._session.port.memory.allocate)
        everything = Carried(frozenset(), self._binding.blocks, ())
        return self._push(self._seals(everything, 1.0, {}, ()), 1.0, stage, None)

    def _seal_rest(self, made: Made) -> list[Send]:
        """Some blocks are on their way: send the others, and once more those that have changed."""
        assert self._stage is not None
        moved = self._mine is not self._session.core.model.by_server
        values = {n: flat(v, v.dtype) for n, v in made.values.items()}
        sent = [b for b in made.carried.blocks if b.index in self._ahead]
        again = [b for b in sent if moved or not self._binding.holds(self._stage, b, values)]
        self.resent = len(again)
        other = None
        if again:
            other = self._take()  # the first one is lent: what is in it must not change
            self._binding.write(values, other, again)
        rest = [b for b in made.carried.blocks if b.index not in self._ahead]
        self._binding.write(values, self._stage, rest)
        revs = {b.index: 1 for b in again}
        self._sealed = _Sealed(made.carried, self.weight, revs, self._stage, other)
        letters = self._seals(made.carried, self.weight, revs, self._ahead.keys() - revs.keys())
        return self._push(letters, self.weight, self._stage, other)

    # ------------------------------------------------------------ messages

    def _known(self, carried: Carried, weight: float) -> list[_Letter]:
        """The seals of a turn that sent nothing ahead: they are the same for each such turn."""
        self._place(self._session.core.model.by_server)
        letters = self._letters.get((carried.absent, weight))
        if letters is None:
            if len(self._letters) >= _MEMORISED:
                self._letters.clear()
            letters = self._letters[carried.absent, weight] = self._seals(carried, weight, {}, ())
        return letters

    def _place(self, mine: Mapping[NodeId, tuple[int, ...]]) -> None:
        if self._mine is not mine:
            self._mine = mine
            self._letters.clear()

    def _seals(self, carried: Carried, weight: float, revs: Mapping[int, int], sent: Collection[int]) -> list[_Letter]:
        """A letter to every server, which hears of all its blocks and gets those that are not `sent`."""
        letters = []
        chosen = {b.index: b for b in carried.blocks}
        for server, owned in self._session.core.model.by_server.items():
            theirs = [chosen[i] for i in owned if i in chosen]
            tensors = {p.tensor for b in theirs for p in b.pieces}
            absent = tuple(sorted(tensors & carried.absent))
            seal = Seal(weight, absent, tuple((b.index, revs.get(b.index, 0)) for b in theirs))
            frames = (
                BlockFrame(b.index, b.dtype, b.numel, revs.get(b.index, 0)) for b in theirs if b.index not in sent
            )
            letters.append(_Letter(server, tuple(frames), seal))
        return letters

    def _push(self, letters: Sequence[_Letter], weight: float, stage: Stage | None, other: Stage | None) -> list[Send]:
        """Sends for `letters`, with blocks of rev 0 from `stage` and those of rev 1 from `other`."""
        parts = {}
        for server, frames, seal in letters:
            payload = []
            for frame in frames:
                source = other if frame.rev else stage
                assert source is not None
                payload.append(source.frames[frame.block])
            parts[server] = (frames, payload, seal)
        core = self._session.core
        sends = core.push(time.monotonic(), parts, weight)
        stages = tuple(s for s in (stage, other) if s is not None)
        for send in sends:
            assert isinstance(send.message, Push)
            self._sources[send.message.req] = stages
            for used in stages:
                used.requests.add(send.message.req)
        return sends

    # ------------------------------------------------------------ memory

    def _take(self) -> Stage:
        """A stage that nobody reads."""
        unacked = self._session.core.transfers.unacked
        for req in [r for r in self._sources if r not in unacked]:
            del self._sources[req]
        taken = next((s for s in self._stages if s is not self._stage and s.free(unacked)), None)
        if taken is None:
            taken = self._binding.new_stage(self._session.port.memory.allocate)
            self._stages.append(taken)
        taken.requests.clear()
        taken.deliveries.clear()
        taken.used = self._turn
        self._stages = [s for s in self._stages if self._turn - s.used < _IDLE_TURNS or not s.free(unacked)]
        return taken

    def _lent(self, push: Push, delivery: Delivery) -> None:
        if not delivery.done:
            for stage in self._sources.get(push.req, ()):
                stage.deliveries.append(delivery)
