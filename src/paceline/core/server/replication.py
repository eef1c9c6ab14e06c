"""What a primary sends to the copies of its blocks: each complete sum, and all blocks to a joining copy.

A primary is ready only when every copy has the sum. A request is repeated until it is answered. A server that does not
answer for `reach_s` is reported to the coordinator.
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

_PAUSES_S = (1.0, 1.0, 2.0, 4.0, 8.0)  # waited before each repetition: on a slow link a request may still be on its way
_MAX_PARTS = 4  # most unanswered parts of sums, and of a copy, to one server at once
_COPY_NBYTES = 8 << 20  # the largest part of a copy, unless one frame is larger
_GRACE_S = 0.25  # a server has this long to answer in a new placement, however long it was silent before


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """Another server, and the blocks that it has copies of; with `joining`, the copies are still being sent."""

    to: NodeId
    blocks: tuple[int, ...]
    joining: bool = False


def copy_targets(placement: Placement, node: NodeId) -> list[CopyTarget]:
    """The servers that `node`, as a primary, sends its blocks to."""
    backups: dict[NodeId, list[int]] = {}
    for block, members in enumerate(placement.backups):
        if placement.owners[block] == node:
            for member in members:
                if member not in placement.group:  # a member of the group has the sum already
                    backups.setdefault(member, []).append(block)
    targets = [CopyTarget(to, tuple(blocks)) for to, blocks in backups.items()]
    for to, blocks in placement.joining:
        mine = tuple(b for b in blocks if placement.owners[b] == node)
        if mine:
            targets.append(CopyTarget(to, mine, joining=True))
    return targets


@dataclass(slots=True)
class _Flow:
    """The sending of sums to one target.

    `parts[n]` are the blocks of part n. `under_way` counts the requests with sums that are sent and not answered;
    `waiting` has the requests with sums that are not sent yet.
    """

    target: CopyTarget
    parts: list[tuple[int, ...]]
    under_way: int = 0
    waiting: deque[tuple[int, _Asked]] = field(default_factory=deque)


@dataclass(slots=True)
class _Asked:
    """A request with a part of a sum, or (without `total`) with a part of a copy.

    Times count only while this process runs.
    """

    flow: _Flow
    part: int
    total: _Total | None = None
    first: float = 0.0
    sent: float = 0.0
    times: int = 0

    @property
    def to(self) -> NodeId:
        """The server that must answer."""
        return self.flow.target.to

    @property
    def due(self) -> float:
        """When to repeat this request."""
        return self.sent + _PAUSES_S[min(self.times, len(_PAUSES_S) - 1)]


@dataclass(slots=True)
class _Total:
    """A complete sum. It is ready once its requests in `missing` are answered."""

    key: SumKey
    ready: Ready
    missing: set[int] = field(default_factory=set)


_Part = tuple[tuple[CopyFrame, ...], Sequence[object]]


@dataclass(slots=True)
class _Copy:
    """The parts of a copy that one joining server has not answered yet."""

    version: int
    parts: dict[int, _Part]
    count: int
    chains: tuple[tuple[int, bytes], ...]
    next: int = 0


class Replication:
    """Requests of one primary that its copies have not answered yet.

    Sums and copies are sent in parts of about `part_nbytes`; a larger block is a part by itself. `targets` are the
    copies of this placement, `peers` the servers that have them. Times (`now`) count only while this process runs.
    """

    def __init__(self, store: BlockStore, reach_s: float, part_nbytes: int = PART_NBYTES) -> None:
        self.targets: list[CopyTarget] = []
        self._reach_s = reach_s
        self._part_nbytes = part_nbytes
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

    @property
    def reach_s(self) -> float:
        """A server that is silent for this many seconds is reported to the coordinator."""
        return self._reach_s

    def set_reach(self, reach_s: float) -> None:
        """Use the `reach_s` of the run, which the coordinator tells."""
        self._reach_s = reach_s

    def void(self, now: float) -> None:
        """Stop all sends: the placement ends. The silence of a server so far counts in the next placement too."""
        for peer, silent_s in self._silence(now).items():
            self._waited[peer] = self._waited.get(peer, 0.0) + silent_s
        self.targets, self._flows = [], []
        self._asked.clear()
        self._copies.clear()
        self._heard.clear()

    def restart(self, targets: list[CopyTarget], incarnation: int, epoch: int, blocks: Mapping[int, BlockSpec]) -> None:
        """Begin a placement; forget the servers that have no copies in it."""
        self.targets, self._at = targets, (incarnation, epoch)
        self._flows = [_Flow(target, self._in_parts(target, blocks)) for target in targets]
        self._totals.clear()
        self.peers = {target.to for target in targets}
        self._waited = {p: s for p, s in self._waited.items() if p in self.peers}
        self._silent &= self.peers

    def _in_parts(self, target: CopyTarget, blocks: Mapping[int, BlockSpec]) -> list[tuple[int, ...]]:
        bounds = cuts((max(LEAST_NBYTES, blocks[b].nbytes) for b in target.blocks), self._part_nbytes)
        return [target.blocks[a:b] for a, b in pairwise(bounds)]

    def pending(self, step: int) -> list[tuple[Fence, ...]]:
        """The fences of each sum of `step` that was sent to the copies."""
        return [fences for number, fences in self._totals if number == step] if self._totals else []

    # ------------------------------------------------------------ sums

    def send(self, key: SumKey, ready: Ready, now: float) -> list[Send]:
        """Send the sum `key`, which is complete, to every copy; `answered` returns `ready` when all have answered."""
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
        """Send requests that wait, up to the limit of unanswered ones."""
        out = []
        while flow.waiting and flow.under_way < _MAX_PARTS:
            req, asked = flow.waiting.popleft()
            flow.under_way += 1
            out.append(self._ask(req, asked, now))
        return out

    def _replicate(self, req: int, asked: _Asked, total: _Total) -> Send:
        key, flow = total.key, asked.flow
        meta, frames, payload = self._store.sums.export(key, flow.parts[asked.part])
        message = Replicate(
            req,
            *self._at,
            key.step,
            key.fence,
            total.ready.fences,
            meta,
            frames,
            flow.target.joining,
            asked.part,
            len(flow.parts),
            total.ready.revision,
        )
        return Send(asked.to, message, payload)

    def answered(
        self, sender: NodeId, message: Replicated | CopyPartAck, now: float
    ) -> tuple[list[Send], Ready | None]:
        """Note the answer of a copy; returns what to send, and the `Ready` of a sum if every copy has it now."""
        out = self._note_answer(sender, now)
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
        """Forget a sum that is applied."""
        total = self._totals.pop((step, fences), None)
        if total is not None:
            self._give_up(total)

    def forget(self, step: int) -> None:
        """Forget all sums of `step`: they are applied or dropped."""
        for key in [k for k in self._totals if k[0] == step]:
            self._give_up(self._totals.pop(key))

    def _give_up(self, total: _Total) -> None:
        """Stop sending a sum. Requests that waited for its answers are sent with the next answer or the next beat."""
        for req in total.missing:
            asked = self._asked.pop(req, None)
            if asked is not None:
                asked.flow.under_way -= 1
        for flow in self._flows if total.missing else ():
            flow.waiting = deque(waiting for waiting in flow.waiting if waiting[1].total is not total)

    # ------------------------------------------------------------ copies

    def begin(self, version: int, chains: Mapping[int, bytes], now: float) -> list[Send]:
        """Send the current version, which is `version`, to every joining server."""
        out = []
        limit = min(_COPY_NBYTES, self._part_nbytes)
        for flow in self._flows:
            target = flow.target
            if target.joining:
                frames, payload = self._store.copies.copy_out(target.blocks)
                bounds = cuts((max(LEAST_NBYTES, f.numel * ITEM_NBYTES.get(f.dtype, 8)) for f in frames), limit)
                parts = {n: (frames[a:b], payload[a:b]) for n, (a, b) in enumerate(pairwise(bounds))}
                known = tuple((block, chains[block]) for block in target.blocks)
                self._copies[target.to] = _Copy(version, parts, len(parts), known)
                out += self._send_parts(flow, now)
        return out

    def _send_parts(self, flow: _Flow, now: float) -> list[Send]:
        copy = self._copies[flow.target.to]
        under_way = sum(1 for a in self._asked.values() if a.total is None and a.flow is flow)
        out = []
        while copy.next < copy.count and under_way < _MAX_PARTS:
            out.append(self._ask(next(self._req), _Asked(flow, copy.next), now))
            copy.next += 1
            under_way += 1
        return out

    def _copy_part(self, req: int, asked: _Asked) -> Send:
        copy = self._copies[asked.to]
        frames, payload = copy.parts[asked.part]
        chains = copy.chains if asked.part == 0 else ()
        message = CopyPart(req, *self._at, copy.version, asked.part, copy.count, frames, chains)
        return Send(asked.to, message, payload)

    # ------------------------------------------------------------ answers and silence

    def _ask(self, req: int, asked: _Asked, now: float) -> Send:
        self._asked[req] = asked
        asked.first = asked.sent = now
        return self._request(req, asked)

    def _request(self, req: int, asked: _Asked) -> Send:
        return self._copy_part(req, asked) if asked.total is None else self._replicate(req, asked, asked.total)

    def repeat(self, now: float) -> list[Send]:
        """Repeat unanswered requests that are due; report servers that have been silent for `reach_s`."""
        out = []
        for req, asked in self._asked.items():
            if now >= asked.due:
                asked.sent, asked.times = now, asked.times + 1
                out.append(self._request(req, asked))
        for flow in self._flows:
            out += self._go_on(flow, now)
        for peer, here_s in self._silence(now).items():
            silent_s = here_s + self._waited.get(peer, 0.0)
            if silent_s >= self._reach_s and here_s >= _GRACE_S:
                self._silent.add(peer)
                out.append(Send(COORDINATOR, Unreachable(peer, silent_s, self._at[1])))
        return out

    def _silence(self, now: float) -> dict[NodeId, float]:
        """How long each server that owes an answer has been silent in this placement."""
        found: dict[NodeId, float] = {}
        for asked in self._asked.values():
            since = max(asked.first, self._heard.get(asked.to, asked.first))
            found[asked.to] = max(now - since, found.get(asked.to, 0.0))
        return found

    def greet(self, peer: NodeId, now: float) -> list[Send]:
        """Repeat at once what `peer` has not answered: the session with it is up (again)."""
        out = []
        for req, asked in self._asked.items():
            if asked.to == peer:
                asked.sent, asked.times = now, 0
                out.append(self._request(req, asked))
        return out

    def _note_answer(self, peer: NodeId, now: float) -> list[Send]:
        if peer not in self.peers:
            return []
        self._heard[peer] = now
        self._waited.pop(peer, None)
        if peer not in self._silent:
            return []
        self._silent.discard(peer)
        return [Send(COORDINATOR, Reachable(peer))]
