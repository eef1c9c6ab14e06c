"""Requests to the coordinator that wait for an answer: repeated after a while, and at once to another coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from paceline.core.effects import Send
from paceline.messages import GiveBack, Message, PlacementRequest, Pull, Push, Register, Turn
from paceline.types import COORDINATOR, Fence, NodeId

_PATIENCE = (1, 1, 2, 4)  # of large messages: on a slow link one may still be under way
_M_co = TypeVar("_M_co", bound=Message, covariant=True)


@dataclass(slots=True)
class Request(Generic[_M_co]):
    """A message that waits for an answer. `sent` is when it was sent last, `repeated` how often it was repeated."""

    to: NodeId
    message: _M_co
    payload: Sequence[object]
    sent: float
    repeated: int = 0

    def is_due(self, now: float, resend_s: float) -> bool:
        """Whether to repeat it. A message that is large, itself or its answer, waits longer each time."""
        large = isinstance(self.message, Push | Pull)
        return now - self.sent >= (resend_s * _PATIENCE[min(self.repeated, len(_PATIENCE) - 1)] if large else resend_s)

    def again(self, now: float, *, anew: bool = False) -> Send:
        """Repeat it; `anew` to a peer that cannot have received it."""
        self.sent, self.repeated = now, 0 if anew else self.repeated + 1
        return Send(self.to, self.message, self.payload)

    def restart(self, sent: float) -> None:
        """Count as sent at `sent`, and not as repeated."""
        self.sent, self.repeated = sent, 0

    def prolong(self, now: float) -> None:
        """Wait for the answer from `now` on: a part of it has arrived."""
        self.sent = now


class CoordinatorRequests:
    """Open requests to the coordinator, by purpose. Only its methods change them.

    There is at most one turn, which is `answered` or not, one question for the placement and one registration; any
    number of attempts given back, by request number. A request stays until it is answered or has become useless.
    """

    def __init__(self, req: int, resend_s: float) -> None:
        self.resend_s = resend_s
        self.turn: Request[Turn] | None = None
        self.answered = False
        self._given_back: dict[int, Request[GiveBack]] = {}
        self._placement: Request[PlacementRequest] | None = None
        self._registration: Request[Register] | None = None
        self._req = req

    def next_req(self) -> int:
        """A number for the next request, to whichever peer."""
        self._req += 1
        return self._req

    # ------------------------------------------------------------ the turn

    def ask(self, turn: Turn, now: float) -> Send:
        """Begin a turn. The turn before it needs no placement any more."""
        self._placement = None
        self.turn, self.answered = Request(COORDINATOR, turn, (), now), False
        return Send(COORDINATOR, turn)

    def is_turn(self, req: int) -> bool:
        """Whether `req` is the turn."""
        return self.turn is not None and self.turn.message.req == req

    def answer_turn(self) -> None:
        """The coordinator answered the turn."""
        self.answered = True

    # ------------------------------------------------------------ attempts given back

    def give_back(self, fence: Fence, now: float) -> Send:
        """Tell the coordinator that an attempt will not count."""
        give_back = GiveBack(self.next_req(), fence)
        self._given_back[give_back.req] = Request(COORDINATOR, give_back, (), now)
        return Send(COORDINATOR, give_back)

    def end_give_back(self, req: int) -> None:
        """The coordinator has answered `GiveBack`.

        While a registration is open the answer does not count: the coordinator may not have known the lease yet.
        """
        if self._registration is None:
            self._given_back.pop(req, None)

    def forget_given_back(self) -> None:
        """Drop attempts given back: the coordinator does not count them anyway."""
        self._given_back.clear()

    # ------------------------------------------------------------ placement and registration

    @property
    def is_placing(self) -> bool:
        """Whether the worker waits to learn where the blocks are."""
        return self._placement is not None

    def place(self, epoch: int, now: float) -> Send:
        """Ask where the blocks are after `epoch`."""
        request = PlacementRequest(self.next_req(), epoch)
        self._placement = Request(COORDINATOR, request, (), now)
        return Send(COORDINATOR, request)

    def end_placement(self) -> None:
        """The placement is known."""
        self._placement = None

    @property
    def is_registering(self) -> bool:
        """Whether a registration is open."""
        return self._registration is not None

    def register(self, introduction: Register, now: float) -> Send:
        """Register again."""
        self._registration = Request(COORDINATOR, introduction, (), now)
        return Send(COORDINATOR, introduction)

    def end_registration(self, req: int) -> bool:
        """The coordinator welcomes this worker; False if `req` is not the open registration."""
        if self._registration is None or self._registration.message.req != req:
            return False
        self._registration = None
        return True

    def forget_turn(self) -> None:
        """The coordinator does not know this worker: what was asked or answered before does not count."""
        self.turn = None
        self._given_back.clear()

    # ------------------------------------------------------------ again

    def give_back_again(self, now: float) -> list[Send]:
        """Tell the coordinator that knows this worker now of all attempts given back, by new requests."""
        fences = [asked.message.fence for asked in self._given_back.values()]
        self._given_back.clear()
        return [self.give_back(fence, now) for fence in fences]

    def ask_again(self, now: float) -> list[Send]:
        """Repeat at once what the coordinator has not answered of this turn."""
        out = [] if self._placement is None else [self._placement.again(now)]
        if self.turn is not None and not self.answered:
            out.append(self.turn.again(now))
        return out

    def repeat(self, now: float, *, waiting: bool, progress: int, declared: int) -> list[Send]:
        """Repeat registration, placement and turn if due. With `waiting`, an answered turn too: its lease may be void.

        Another coordinator may be the first to receive the registration, so `progress` and `declared` in it must be
        of now. The leases in it stay those of its first sending: the worker asks again for what it was given since.
        """
        asked = self._registration
        if asked is not None and asked.is_due(now, self.resend_s):
            asked.message = msgspec.structs.replace(asked.message, progress=progress, declared=declared)
        turn = self.turn if waiting or not self.answered else None
        opened: tuple[Request[Message] | None, ...] = (self._registration, self._placement, turn)
        return [asked.again(now) for asked in opened if asked is not None and asked.is_due(now, self.resend_s)]

    def repeat_given_back(self, now: float) -> list[Send]:
        """Repeat `GiveBack` messages that are due."""
        return [asked.again(now) for asked in self._given_back.values() if asked.is_due(now, self.resend_s)]
