"""What a worker has asked and nobody has answered yet: said again after a while, and when a peer comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from paceline.core.effects import Send
from paceline.core.message_parts import Arrivals
from paceline.messages import GiveBack, Message, PlacementRequest, Pull, Push, Register, Turn
from paceline.types import COORDINATOR, Fence, NodeId

_PATIENCE = (1, 1, 2, 4)  # of what is large: on a slow link it may still be under way
_M_co = TypeVar("_M_co", bound=Message, covariant=True)


@dataclass(slots=True)
class Request(Generic[_M_co]):
    """A message that awaits an answer. `sent` is when it was said last, `repeated` how often it was said again."""

    to: NodeId
    message: _M_co
    payload: Sequence[object]
    sent: float
    repeated: int = 0

    def is_due(self, now: float, resend_s: float) -> bool:
        """Whether it should be said again. What is large, itself or its answer, waits longer each time."""
        large = isinstance(self.message, Push | Pull)
        return now - self.sent >= (resend_s * _PATIENCE[min(self.repeated, len(_PATIENCE) - 1)] if large else resend_s)

    def again(self, now: float, *, anew: bool = False) -> Send:
        """Say it once more; `anew` to a peer that cannot have heard it."""
        self.sent, self.repeated = now, 0 if anew else self.repeated + 1
        return Send(self.to, self.message, self.payload)


class Asking:
    """Requests of one worker, by what they are for. An entry stays until it is answered, or of no use any more.

    There is one turn, which is `answered` or not; one pull a server; any number of pushes and of slots given back, by
    request.
    """

    def __init__(self, req: int, resend_s: float) -> None:
        self.resend_s = resend_s
        self.turn: Request[Turn] | None = None
        self.answered = False
        self.pulls: dict[NodeId, Request[Pull]] = {}
        self.arrivals = Arrivals()
        self.pushes: dict[int, Request[Push]] = {}
        self.given_back: dict[int, Request[GiveBack]] = {}
        self.placing: Request[PlacementRequest] | None = None
        self.rejoining: Request[Register] | None = None
        self._req = req

    def next_req(self) -> int:
        """A number for the next request."""
        self._req += 1
        return self._req

    # ------------------------------------------------------------ asking

    def ask(self, turn: Turn, now: float) -> Send:
        """A turn begins: what was being read or looked for in the one before it is not needed now."""
        self.forget_pulls()
        self.placing = None
        self.turn, self.answered = Request(COORDINATOR, turn, (), now), False
        return Send(COORDINATOR, turn)

    def pull(self, server: NodeId, pull: Pull, now: float) -> Send:
        """Read from a server."""
        self.pulls[server] = Request(server, pull, (), now)
        return Send(server, pull)

    def push(self, server: NodeId, push: Push, payload: Sequence[object], now: float) -> Send:
        """Send blocks to a server."""
        self.pushes[push.req] = Request(server, push, payload, now)
        return Send(server, push, payload)

    def give_back(self, fence: Fence, now: float) -> Send:
        """An attempt will not count."""
        give_back = GiveBack(self.next_req(), fence)
        self.given_back[give_back.req] = Request(COORDINATOR, give_back, (), now)
        return Send(COORDINATOR, give_back)

    def taken_back(self, req: int) -> None:
        """The coordinator has heard of such an attempt.

        One that it is being told of in an introduction it may not have known yet: that is said once more after it.
        """
        if self.rejoining is None:
            self.given_back.pop(req, None)

    def give_back_again(self, now: float) -> list[Send]:
        """Another coordinator knows this worker now: it is told, and what it answered before counts no more."""
        fences = [asked.message.fence for asked in self.given_back.values()]
        self.given_back.clear()
        return [self.give_back(fence, now) for fence in fences]

    def place(self, epoch: int, now: float) -> Send:
        """Where are the blocks, after `epoch`?"""
        request = PlacementRequest(self.next_req(), epoch)
        self.placing = Request(COORDINATOR, request, (), now)
        return Send(COORDINATOR, request)

    def rejoin(self, introduction: Register, now: float) -> Send:
        """Register again."""
        self.rejoining = Request(COORDINATOR, introduction, (), now)
        return Send(COORDINATOR, introduction)

    # ------------------------------------------------------------ answers

    def is_turn(self, req: int) -> bool:
        """Whether `req` is the turn."""
        return self.turn is not None and self.turn.message.req == req

    def is_pull(self, req: int) -> bool:
        """Whether `req` is a read."""
        return any(asked.message.req == req for asked in self.pulls.values())

    def forget_pulls(self) -> None:
        """Nothing is read any more, not even what has come in part."""
        self.pulls.clear()
        self.arrivals.clear()

    def forget_gone(self, servers: Mapping[NodeId, object]) -> None:
        """There are only these `servers` now, and others do not answer pushes."""
        for req in [req for req, asked in self.pushes.items() if asked.to not in servers]:
            del self.pushes[req]

    # ------------------------------------------------------------ again

    def hurry(self, request: Request[Message], now: float, wait_s: float) -> None:
        """Say `request` again in `wait_s`."""
        request.sent, request.repeated = now - self.resend_s + wait_s, 0

    def repeat(self, now: float, *, waiting: bool) -> list[Send]:
        """Say again what nobody answered. With `waiting`, an answered turn too: its lease may be void by now."""
        turn = self.turn if waiting or not self.answered else None
        single = [asked for asked in (self.rejoining, self.placing, turn) if asked is not None]
        under_way = chain[Request[Message]](single, self.pulls.values(), self.pushes.values(), self.given_back.values())
        return [asked.again(now) for asked in under_way if asked.is_due(now, self.resend_s)]

    def greet(self, server: NodeId, now: float) -> list[Send]:
        """The session with `server` came up (again): say at once what it has not answered."""
        asked = self.pulls.get(server)
        out = [] if asked is None else [asked.again(now, anew=True)]
        return out + [push.again(now, anew=True) for push in self.pushes.values() if push.to == server]
