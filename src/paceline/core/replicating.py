"""A primary's side of its copies: sums go to every copy before it says that it is ready; new copies are sent whole.

A request is repeated until it is answered; for whom it is not for too long, the coordinator is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from paceline.core.effects import Send
from paceline.core.layout import ITEMSIZE
from paceline.core.parts import cuts
from paceline.core.store import BlockStore, SumKey
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
from paceline.types import COORDINATOR, Fence, NodeId, Placement

_RESEND_S = 1.0
_PARTS = 4  # of a copy that may be under way at once
_PART_NBYTES = 8 << 20
_LEAST_NBYTES = 4 << 10  # what a frame counts for at least: a message has a limited number of them


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
class _Asked:
    """A sum on its way to one copy, or a part of a copy. Times are those in which this process ran."""

    lane: Lane
    first: float
    sent: float
    total: _Total | None = None
    part: int = 0


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
    """Requests of one primary that its copies have not answered. Without copies there is nothing in here."""

    def __init__(self, store: BlockStore, reach_s: float = 3.0) -> None:
        self.lanes: list[Lane] = []
        self.reach_s = reach_s
        self._store = store
        self._at = (0, 0)
        self._asked: dict[int, _Asked] = {}
        self._totals: dict[tuple[int, tuple[Fence, ...]], _Total] = {}
        self._copies: dict[NodeId, _Copy] = {}
        self._heard: dict[NodeId, float] = {}
        self._silent: set[NodeId] = set()
        self._req = count(1)

    def restart(self, found: list[Lane], incarnation: int, epoch: int) -> None:
        """A placement begins: nothing is under way."""
        self.lanes, self._at = found, (incarnation, epoch)
        self._asked.clear()
        self._totals.clear()
        self._copies.clear()
        self._silent.intersection_update(lane.to for lane in found)

    def pending(self, step: int) -> list[tuple[Fence, ...]]:
        """The sums of `step` that were sent to the copies, by their attempts."""
        return [fences for number, fences in self._totals if number == step] if self._totals else []

    # ------------------------------------------------------------ sums

    def send(self, key: SumKey, ready: Ready, now: float) -> list[Send]:
        """The sum `key` is complete here: send it to every copy. `ready` may be said when all have answered."""
        if (key.step, ready.fences) in self._totals:
            return []
        total = self._totals[key.step, ready.fences] = _Total(key, ready)
        out = []
        for lane in self.lanes:
            req = next(self._req)
            total.missing.add(req)
            asked = self._asked[req] = _Asked(lane, now, now, total)
            out.append(self._replicate(req, asked, total))
        return out

    def _replicate(self, req: int, asked: _Asked, total: _Total) -> Send:
        key, lane = total.key, asked.lane
        meta, frames, payload = self._store.export(key, lane.blocks)
        message = Replicate(req, *self._at, key.step, key.fence, total.ready.fences, meta, frames, lane.joining)
        return Send(lane.to, message, payload)

    def answered(
        self, sender: NodeId, message: Replicated | CopyPartAck, now: float
    ) -> tuple[list[Send], Ready | None]:
        """A copy has answered; returns what follows, and what may be said now."""
        asked = self._asked.get(message.req)
        if asked is None or asked.lane.to != sender or (message.incarnation, message.epoch) != self._at:
            return [], None
        del self._asked[message.req]
        out = self._hears(sender, now)
        total = asked.total
        if total is None:
            self._copies[sender].parts.pop(asked.part, None)
            return out + self._send_parts(asked.lane, now), None
        total.missing.discard(message.req)
        if total.missing:
            return out, None
        return out, total.ready

    def applied(self, step: int, fences: tuple[Fence, ...]) -> None:
        """That sum is applied."""
        total = self._totals.pop((step, fences), None)
        for req in () if total is None else total.missing:
            self._asked.pop(req, None)

    def forget(self, step: int) -> None:
        """The sums of `step` are applied or dropped."""
        for number, fences in [k for k in self._totals if k[0] == step]:
            for req in self._totals.pop((number, fences)).missing:
                self._asked.pop(req, None)

    # ------------------------------------------------------------ copies

    def begin(self, version: int, chains: Mapping[int, bytes], now: float) -> list[Send]:
        """Send those who join a copy of the current version, which is `version`."""
        out = []
        for lane in self.lanes:
            if lane.joining:
                frames, payload = self._store.copy_out(lane.blocks)
                bounds = cuts((max(_LEAST_NBYTES, f.numel * ITEMSIZE.get(f.dtype, 8)) for f in frames), _PART_NBYTES)
                parts = {n: (frames[a:b], payload[a:b]) for n, (a, b) in enumerate(pairwise(bounds))}
                known = tuple((block, chains[block]) for block in lane.blocks)
                self._copies[lane.to] = _Copy(version, parts, len(parts), known)
                out += self._send_parts(lane, now)
        return out

    def _send_parts(self, lane: Lane, now: float) -> list[Send]:
        copy = self._copies[lane.to]
        under_way = sum(1 for a in self._asked.values() if a.total is None and a.lane is lane)
        out = []
        while copy.next < copy.count and under_way < _PARTS:
            req = next(self._req)
            asked = self._asked[req] = _Asked(lane, now, now, None, copy.next)
            out.append(self._part(req, asked))
            copy.next += 1
            under_way += 1
        return out

    def _part(self, req: int, asked: _Asked) -> Send:
        copy = self._copies[asked.lane.to]
        frames, payload = copy.parts[asked.part]
        chains = copy.chains if asked.part == 0 else ()
        message = CopyPart(req, *self._at, copy.version, asked.part, copy.count, frames, chains)
        return Send(asked.lane.to, message, payload)

    # ------------------------------------------------------------ who answers

    def repeat(self, now: float) -> list[Send]:
        """Say again what was not answered; tell of those who have not answered for too long."""
        due = [(req, asked) for req, asked in self._asked.items() if now - asked.sent >= _RESEND_S]
        out = self._again(due, now)
        waiting: dict[NodeId, float] = {}
        for asked in self._asked.values():
            since = max(asked.first, self._heard.get(asked.lane.to, asked.first))
            waiting[asked.lane.to] = min(since, waiting.get(asked.lane.to, since))
        for peer, since in waiting.items():
            if now - since >= self.reach_s:
                self._silent.add(peer)
                out.append(Send(COORDINATOR, Unreachable(peer, now - since, self._at[1])))
        return out

    def greet(self, peer: NodeId, now: float) -> list[Send]:
        """The session with `peer` came up (again): say at once what it has not answered."""
        return self._again([(req, asked) for req, asked in self._asked.items() if asked.lane.to == peer], now)

    def _again(self, due: Iterable[tuple[int, _Asked]], now: float) -> list[Send]:
        out = []
        for req, asked in due:
            asked.sent = now
            out.append(self._part(req, asked) if asked.total is None else self._replicate(req, asked, asked.total))
        return out

    def _hears(self, peer: NodeId, now: float) -> list[Send]:
        self._heard[peer] = now
        if peer not in self._silent:
            return []
        self._silent.discard(peer)
        return [Send(COORDINATOR, Reachable(peer))]
