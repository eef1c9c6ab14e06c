"""A primary's side of its copies: sums go to every copy before it says that it is ready; new copies are sent whole.

A request is repeated until it is answered; for whom it is not for too long, the coordinator is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from paceline.core.effects import Send
from paceline.core.message_parts import LEAST_NBYTES, PART_NBYTES, cuts
from paceline.core.server.block_store import BlockStore, SumKey
from paceline.messages import (
    CopyFrame,
    CopyPart,
    CopyPartAck,
    Reachable,
    Ready,
    Replicate,
    Replicated,
    Unreachable,
)
from paceline.types import COORDINATOR, ITEM_NBYTES, BlockSpec, Fence, NodeId, Placement

_PAUSES_S = (1.0, 1.0, 2.0, 4.0, 8.0)  # before a request is said again: on a slow link it may still be under way
_PARTS = 4  # of a sum, and of a copy, that may be under way to one server at once
_COPY_NBYTES = 8 << 20
_GRACE_S = 0.25  # for an answer in a new placement, however long there was none before


@dataclass(frozen=True, slots=True)
class Lane:
    """Blocks that one other server has copies of, or is being sent copies of."""

    to: NodeId
    blocks: tuple[int, ...]
    joining: bool = False


def lanes(placement: Placement, node: NodeId) -> list[Lane]:
    """To whom `node`, as a primary, sends what."""
    backups: dict[NodeId, list[int]] = {}
    for block, members in enumerate(placement.backups):
        if placement.owners[block] == node:
            for member in members:
                backups.setdefault(member, []).append(block)
    found = [Lane(to, tuple(blocks)) for to, blocks in backups.items()]
    for to, blocks in placement.joining:
        mine = tuple(b for b in blocks if placement.owners[b] == node)
        if mine:
            found.append(Lane(to, mine, joining=True))
    return found


@dataclass(slots=True)
class _Flow:
    """Sums on their way to one lane: its blocks in `parts`, how many of these are under way, and what comes next."""

    lane: Lane
    parts: list[tuple[int, ...]]
    under_way: int = 0
    waiting: deque[tuple[int, _Asked]] = field(default_factory=deque)


@dataclass(slots=True)
class _Asked:
    """A part of a sum on its way to one copy, or (without `total`) a part of a copy.

    Times are those in which this process ran.
    """

    flow: _Flow
    part: int
    total: _Total | None = None
    first: float = 0.0
    sent: float = 0.0
    times: int = 0

    @property
    def to(self) -> NodeId:
        """Who is asked."""
        return self.flow.lane.to

    @property
    def due(self) -> float:
        """When to say it again."""
        return self.sent + _PAUSES_S[min(self.times, len(_PAUSES_S) - 1)]


@dataclass(slots=True)
class _Total:
    """A sum that is complete here: ready once nobody is missing."""

    key: SumKey
    ready: Ready
    missing: set[int] = field(default_factory=set)


_Part = tuple[tuple[CopyFrame, ...], Sequence[object]]


@dataclass(slots=True)
class _Copy:
    """What one joining server is still to be sent."""

    version: int
    parts: dict[int, _Part]
    count: int
    chains: tuple[tuple[int, bytes], ...]
    next: int = 0


class Replicator:
    """Requests of one primary that its copies have not answered. Without copies there is nothing in here.

    Sums and copies are sent in parts of about `part_nbytes`; a block that is larger is one by itself. `peers` are those
    who are sent something.
    """

    def __init__(self, store: BlockStore, reach_s: float, part_nbytes: int = PART_NBYTES) -> None:
        self.lanes: list[Lane] = []
        self.reach_s = reach_s
        self.part_nbytes = part_nbytes
        self._store = store
        self._at = (0, 0)
        self._flows: list[_Flow] = []
        self._asked: dict[int, _Asked] = {}
        self._totals: dict[tuple[int, tuple[Fence, ...]], _Total] = {}
        self._copies: dict[NodeId, _Copy] = {}
        self.peers: set[NodeId] = set()
        self._heard: dict[NodeId, float] = {}
        self._waited: dict[NodeId, float] = {}
        self._silent: set[NodeId] = set()
        self._req = count(1)

    def void(self, now: float) -> None:
        """The placement is over: nothing is sent any more. Who has not answered is not forgiven that."""
        for peer, silent_s in self._silence(now).items():
            self._waited[peer] = self._waited.get(peer, 0.0) + silent_s
        self.lanes, self._flows = [], []
        self._asked.clear()
        self._copies.clear()
        self._heard.clear()

    def restart(self, found: list[Lane], incarnation: int, epoch: int, blocks: Mapping[int, BlockSpec]) -> None:
        """A placement begins. Whoever has not answered before has less time now, if it is sent to again."""
        self.lanes, self._at = found, (incarnation, epoch)
        self._flows = [_Flow(lane, self._in_parts(lane, blocks)) for lane in found]
        self._totals.clear()
        self.peers = {lane.to for lane in found}
        self._waited = {p: s for p, s in self._waited.items() if p in self.peers}
        self._silent &= self.peers

    def _in_parts(self, lane: Lane, blocks: Mapping[int, BlockSpec]) -> list[tuple[int, ...]]:
        bounds = cuts((max(LEAST_NBYTES, blocks[b].nbytes) for b in lane.blocks), self.part_nbytes)
        return [lane.blocks[a:b] for a, b in pairwise(bounds)]

    def pending(self, step: int) -> list[tuple[Fence, ...]]:
        """The sums of `step` that were sent to the copies, by their attempts."""
        return [fences for number, fences in self._totals if number == step] if self._totals else []

    # ------------------------------------------------------------ sums

    def send(self, key: SumKey, ready: Ready, now: float) -> list[Send]:
        """The sum `key` is complete here: send it to every copy. `ready` may be said when all have answered."""
        if (key.step, ready.fences) in self._totals:
            return []
        total = self._totals[key.step, ready.fences] = _Total(key, ready)
        out: list[Send] = []
        for flow in self._flows:
            for part in range(len(flow.parts)):
                req = next(self._req)
                total.missing.add(req)
                flow.waiting.append((req, _Asked(flow, part, total)))
            out += self._go_on(flow, now)
        return out

    def _go_on(self, flow: _Flow, now: float) -> list[Send]:
        """Send what waits, if not too much is under way."""
        out = []
        while flow.waiting and flow.under_way < _PARTS:
            req, asked = flow.waiting.popleft()
            flow.under_way += 1
            out.append(self._ask(req, asked, now))
        return out

    def _replicate(self, req: int, asked: _Asked, total: _Total) -> Send:
        key, flow = total.key, asked.flow
        meta, frames, payload = self._store.export(key, flow.parts[asked.part])
        message = Replicate(
            req,
            *self._at,
            key.step,
            key.fence,
            total.ready.fences,
            meta,
            frames,
            flow.lane.joining,
            asked.part,
            len(flow.parts),
        )
        return Send(asked.to, message, payload)

    def answered(
        self, sender: NodeId, message: Replicated | CopyPartAck, now: float
    ) -> tuple[list[Send], Ready | None]:
        """A copy has answered; returns what follows, and what may be said now."""
        out = self._hears(sender, now)
        asked = self._asked.get(message.req)
        if asked is None or asked.to != sender or (message.incarnation, message.epoch) != self._at:
            return out, None
        del self._asked[message.req]
        total = asked.total
        if total is None:
            self._copies[sender].parts.pop(asked.part, None)
            return out + self._send_parts(asked.flow, now), None
        asked.flow.under_way -= 1
        out += self._go_on(asked.flow, now)
        total.missing.discard(message.req)
        return out, None if total.missing else total.ready

    def applied(self, step: int, fences: tuple[Fence, ...]) -> None:
        """That sum is applied."""
        total = self._totals.pop((step, fences), None)
        if total is not None:
            self._give_up(total)

    def forget(self, step: int) -> None:
        """The sums of `step` are applied or dropped."""
        for key in [k for k in self._totals if k[0] == step]:
            self._give_up(self._totals.pop(key))

    def _give_up(self, total: _Total) -> None:
        """Nobody needs the rest of it. What waits behind it goes with the next answer, or the next beat."""
        for req in total.missing:
            asked = self._asked.pop(req, None)
            if asked is not None:
                asked.flow.under_way -= 1
        for flow in self._flows if total.missing else ():
            flow.waiting = deque(waiting for waiting in flow.waiting if waiting[1].total is not total)

    # ------------------------------------------------------------ copies

    def begin(self, version: int, chains: Mapping[int, bytes], now: float) -> list[Send]:
        """Send those who join a copy of the current version, which is `version`."""
        out = []
        limit = min(_COPY_NBYTES, self.part_nbytes)
        for flow in self._flows:
            lane = flow.lane
            if lane.joining:
                frames, payload = self._store.copy_out(lane.blocks)
                bounds = cuts((max(LEAST_NBYTES, f.numel * ITEM_NBYTES.get(f.dtype, 8)) for f in frames), limit)
                parts = {n: (frames[a:b], payload[a:b]) for n, (a, b) in enumerate(pairwise(bounds))}
                known = tuple((block, chains[block]) for block in lane.blocks)
                self._copies[lane.to] = _Copy(version, parts, len(parts), known)
                out += self._send_parts(flow, now)
        return out

    def _send_parts(self, flow: _Flow, now: float) -> list[Send]:
        copy = self._copies[flow.lane.to]
        under_way = sum(1 for a in self._asked.values() if a.total is None and a.flow is flow)
        out = []
        while copy.next < copy.count and under_way < _PARTS:
            out.append(self._ask(next(self._req), _Asked(flow, copy.next), now))
            copy.next += 1
            under_way += 1
        return out

    def _part(self, req: int, asked: _Asked) -> Send:
        copy = self._copies[asked.to]
        frames, payload = copy.parts[asked.part]
        chains = copy.chains if asked.part == 0 else ()
        message = CopyPart(req, *self._at, copy.version, asked.part, copy.count, frames, chains)
        return Send(asked.to, message, payload)

    # ------------------------------------------------------------ who answers

    def _ask(self, req: int, asked: _Asked, now: float) -> Send:
        self._asked[req] = asked
        asked.first = asked.sent = now
        return self._request(req, asked)

    def _request(self, req: int, asked: _Asked) -> Send:
        return self._part(req, asked) if asked.total is None else self._replicate(req, asked, asked.total)

    def repeat(self, now: float) -> list[Send]:
        """Say again what was not answered; tell of those who have not answered for too long."""
        out = []
        for req, asked in self._asked.items():
            if now >= asked.due:
                asked.sent, asked.times = now, asked.times + 1
                out.append(self._request(req, asked))
        for flow in self._flows:
            out += self._go_on(flow, now)
        for peer, here_s in self._silence(now).items():
            silent_s = here_s + self._waited.get(peer, 0.0)
            if silent_s >= self.reach_s and here_s >= _GRACE_S:
                self._silent.add(peer)
                out.append(Send(COORDINATOR, Unreachable(peer, silent_s, self._at[1])))
        return out

    def _silence(self, now: float) -> dict[NodeId, float]:
        """For how long those who should have answered have not, in this placement."""
        found: dict[NodeId, float] = {}
        for asked in self._asked.values():
            since = max(asked.first, self._heard.get(asked.to, asked.first))
            found[asked.to] = max(now - since, found.get(asked.to, 0.0))
        return found

    def greet(self, peer: NodeId, now: float) -> list[Send]:
        """The session with `peer` came up (again): say at once what it has not answered."""
        out = []
        for req, asked in self._asked.items():
            if asked.to == peer:
                asked.sent, asked.times = now, 0
                out.append(self._request(req, asked))
        return out

    def _hears(self, peer: NodeId, now: float) -> list[Send]:
        if peer not in self.peers:
            return []
        self._heard[peer] = now
        self._waited.pop(peer, None)
        if peer not in self._silent:
            return []
        self._silent.discard(peer)
        return [Send(COORDINATOR, Reachable(peer))]
