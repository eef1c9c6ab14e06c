"""How a reader follows a running job: which version it asks which server for, and when it has a whole one.

A reader is no member (rule 25): it has no lease, and no server keeps a version for it. It asks every server for one
version that is not committed yet. Each server parks the question, and answers in the moment in which it applies that
commit: so all answers are of one version, though nothing is held. If the version was committed before the question
came, it is gone, and the reader asks for a later one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from paceline.core.effects import Send
from paceline.messages import Follow, Following, Message, Pull, PullReply, Refused
from paceline.types import COORDINATOR, NodeId

_NEVER = float("-inf")
_MOST_AHEAD = 4096
_ASK_S = 0.25  # seconds between two questions to the coordinator while a read waits
_AGAIN_S = 0.05  # seconds until a question without an answer, or a read that was refused, is repeated
_STILL_S = 0.3  # a version that did not change for so long is current, and is asked for itself
_SMOOTH = 0.4
_LATE_S = 5.0  # a read whose answers have been due for so long is begun anew


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """The reader rests at least `interval_s` between two reads, and `rest` times the seconds that the last one took."""

    interval_s: float = 0.3
    rest: float = 15.0


@dataclass(frozen=True, slots=True)
class Fill:
    """Blocks of the next version have come, in the order of the frames; they are copied beside the present version."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """The next version is whole: blocks that did not come are as in the one before. It was committed at `committed`."""

    incarnation: int
    version: int
    committed: float


@dataclass(frozen=True, slots=True)
class Restart:
    """What came of the next version is void."""


Output = Send | Fill | Whole | Restart


@dataclass(slots=True)
class _Read:
    """The read under way, of version `exact`. `left` are the servers that have not answered in full."""

    exact: int
    began: float
    requests: dict[int, NodeId]
    left: set[NodeId]
    parts: dict[NodeId, int] = field(default_factory=dict)
    first: float | None = None


class _Pace:
    """How many versions the job makes in a second, and how long an answer of the coordinator takes; both smoothed."""

    def __init__(self) -> None:
        self._at: tuple[float, int] | None = None
        self._rate, self._answer_s = 0.0, 0.0

    def note(self, now: float, answer_s: float, version: int) -> None:
        """Note an answer: the job is at `version`."""
        if 0 <= answer_s < _LATE_S:
            self._answer_s += _SMOOTH * (answer_s - self._answer_s)
        if self._at is not None and version >= self._at[1] and now - self._at[0] >= _AGAIN_S:
            self._rate += _SMOOTH * ((version - self._at[1]) / (now - self._at[0]) - self._rate)
        if self._at is None or version < self._at[1] or now - self._at[0] >= _AGAIN_S:
            self._at = now, version

    @property
    def expected(self) -> int:
        """How many versions are made while a question is on its way, with a margin."""
        return int(1.5 * self._rate * self._answer_s)


class Reader:
    """The protocol of one reader. Changed only by its methods; `now` is any steady clock.

    The shell has `version` of `incarnation` whole; -1 at first. `current` is the newest version that is known to be
    committed, and `heard` when the coordinator answered last.
    """

    def __init__(self, limits: ReaderLimits | None = None) -> None:
        self.limits = limits or ReaderLimits()
        self.incarnation, self.version = 0, -1
        self.current, self.heard = -1, _NEVER
        self.following: Following | None = None
        self._extra = 0
        self._pace = _Pace()
        self._committed = _NEVER
        self._changed = _NEVER
        self._req = 0
        self._asked = _NEVER
        self._read: _Read | None = None
        self._rest_until = _NEVER
        self._up: set[NodeId] = set()

    @property
    def addresses(self) -> dict[NodeId, str]:
        """The servers to connect to, with their addresses."""
        placement = None if self.following is None else self.following.placement
        if placement is None:
            return {}
        return {owner: placement.addresses[owner] for owner in sorted(set(placement.owners))}

    @property
    def ahead(self) -> int:
        """How many versions after the newest known one the next read asks for: those made while it is on its way."""
        return min(_MOST_AHEAD, 1 + self._extra + self._pace.expected)

    @property
    def is_newest(self) -> bool:
        """Whether the shell has the newest version that is known."""
        known = self.following
        return known is not None and (self.incarnation, self.version) == (known.incarnation, self.current)

    # ------------------------------------------------------------ events

    def adopt(self, incarnation: int, version: int) -> None:
        """Note that the shell has got a whole version elsewhere. A read under way is void."""
        self._read = None
        self.incarnation, self.version = incarnation, version

    def up(self, peer: NodeId) -> None:
        """Note that there is a session with server `peer`."""
        self._up.add(peer)

    def down(self, peer: NodeId) -> list[Output]:
        """Note that the session with server `peer` has ended."""
        self._up.discard(peer)
        return self._give_up() if self._read is not None and peer in self._read.left else []

    def tick(self, now: float) -> list[Output]:
        """Ask the coordinator where the job stands if that is due; its answer begins the next read."""
        out: list[Output] = []
        read = self._read
        if read is not None:
            waits = read.first is None and not self.is_newest and self.current >= 0
            if waits and now - self._changed >= _STILL_S and read.exact > self.current:
                out = self._give_up()  # the job makes no versions now: read the one that there is
                self._asked = _NEVER
            elif now - (read.began if read.first is None else read.first) >= _LATE_S and self._is_overdue(read):
                out = self._give_up()
        if self._read is None and now < self._rest_until:
            return out
        if now - self._asked >= (_ASK_S if self._read is not None else _AGAIN_S):
            self._asked = now
            known = self.following
            out.append(Send(COORDINATOR, Follow(self._next(), known is not None and known.model is not None)))
        return out

    def handle(self, sender: NodeId, message: Message, now: float) -> list[Output]:
        """Handle a message of the coordinator or of a server."""
        match message:
            case Following():
                return self._take(message, now)
            case PullReply():
                return self._receive(sender, message, now)
            case Refused(req=req, rule=rule) if self._read is not None and req in self._read.requests:
                if rule == "gone":
                    self._extra = min(_MOST_AHEAD, 2 * self._extra + 1)
                else:  # another placement or incarnation
                    self._rest_until = now + _AGAIN_S
                self._asked = _NEVER
                return self._give_up()
        return []

    # ------------------------------------------------------------ the coordinator

    def _next(self) -> int:
        self._req += 1
        return self._req

    def _take(self, answer: Following, now: float) -> list[Output]:
        known, self.heard = self.following, now
        self._pace.note(now, now - self._asked, answer.version)
        if known is not None and answer.generation < known.generation:
            return []
        if answer.model is None and known is not None:
            answer = msgspec.structs.replace(answer, model=known.model)
        other = known is None or answer.incarnation != known.incarnation
        moved = other or (known is not None and _epoch(answer) != _epoch(known))
        self.following = answer
        if other or answer.version > self.current:
            self.current, self._changed = answer.version, now
            self._committed = now - max(0.0, answer.ago_s)
        out = self._give_up() if moved else []
        return out + (self._begin(now) if self._read is None and now >= self._rest_until else [])

    # ------------------------------------------------------------ reads

    def _begin(self, now: float) -> list[Output]:
        """Ask every server for its blocks of one version, if all of them can be asked."""
        known = self.following
        if known is None or known.placement is None or known.model is None or self.current < 0:
            return []
        placement = known.placement
        owners = set(placement.owners)
        if not owners <= self._up:
            return []
        is_still = now - self._changed >= _STILL_S and not self.is_newest
        exact = self.current if is_still else self.current + self.ahead
        have = self.version if self.incarnation == known.incarnation and self.version <= exact else -1
        read = self._read = _Read(exact, now, {}, owners)
        out: list[Output] = []
        for owner in sorted(owners):
            req = self._next()
            read.requests[req] = owner
            blocks = placement.owned(owner)
            pull = Pull(req, known.incarnation, placement.epoch, exact, have=have, blocks=blocks)
            out.append(Send(owner, pull))
        return out

    def _receive(self, sender: NodeId, reply: PullReply, now: float) -> list[Output]:
        read, known = self._read, self.following
        if read is None or known is None or read.requests.get(reply.req) != sender or reply.ahead:
            return []
        if (reply.incarnation, reply.version) != (known.incarnation, read.exact):
            return []
        if read.first is None:
            read.first = now
        out: list[Output] = [Fill(tuple(frame.block for frame in reply.blocks))]
        read.parts[sender] = read.parts.get(sender, 0) + 1
        if read.parts[sender] == reply.parts:
            read.left.discard(sender)
        if read.left:
            return out
        self.incarnation, self.version = reply.incarnation, reply.version
        if reply.version > self.current:  # it was answered in the moment of its commit
            self.current, self._changed, self._committed = reply.version, now, read.first
        committed = self._committed if reply.version == self.current else read.first
        self._rest_until = now + max(self.limits.interval_s, self.limits.rest * (now - read.first))
        self._extra //= 2
        self._read = None
        return [*out, Whole(self.incarnation, self.version, committed)]

    def _is_overdue(self, read: _Read) -> bool:
        """Whether answers are due: some have come, or the version is known to be committed."""
        return read.first is not None or self.current >= read.exact

    def _give_up(self) -> list[Output]:
        read, self._read = self._read, None
        return [Restart()] if read is not None and read.first is not None else []


def _epoch(answer: Following) -> int:
    return -1 if answer.placement is None else answer.placement.epoch
