"""Requests to the coordinator that are not answered yet. They are repeated: after a time, and to a new coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from paceline.core.effects import Send
from paceline.messages import GiveBack, Message, PlacementRequest, Pull, Push, Register, Turn
from paceline.types import COORDINATOR, Fence, NodeId

# How many times `resend_s` to wait before each repetition of a large message: a slow link may still carry it.
_PATIENCE = (1, 1, 2, 4)
_M_co = TypeVar("_M_co", bound=Message, covariant=True)


@dataclass(slots=True)
class Request(Generic[_M_co]):
    """A message without an answer yet. `sent` is the time of its last sending; `repeated` counts the repetitions."""

    to: NodeId
    message: _M_co
    payload: Sequence[object]
    sent: float
    repeated: int = 0

    def is_due(self, now: float, resend_s: float) -> bool:
        """Whether it is time to repeat the message. Pushes and pulls, which move many bytes, wait longer each time."""
        large = isinstance(self.message, Push | Pull)
        return now - self.sent >= (resend_s * _PATIENCE[min(self.repeated, len(_PATIENCE) - 1)] if large else resend_s)

    def again(self, now: float, *, anew: bool = False) -> Send:
        """Repeat the message. `anew`: the peer cannot have received it before, so the repetitions count from 0."""
        self.sent, self.repeated = now, 0 if anew else self.repeated + 1
        return Send(self.to, self.message, self.payload)

    def restart(self, sent: float) -> None:
        """Set the time of the last sending to `sent`, and the number of repetitions to 0."""
        self.sent, self.repeated = sent, 0

    def prolong(self, now: float) -> None:
        """Begin to wait anew at `now`, because a part of the answer has arrived."""
        self.sent = now


class CoordinatorRequests:
    """The open requests (without an answer yet) to the coordinator. Only its methods change them.

    There is at most one `Turn` (`answered` says whether it has an answer), one `PlacementRequest` and one `Register`,
    and any number of `GiveBack` by request number. A request stays until it is answered or has become useless.
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
        """Return a new request number. Requests to all peers share the numbers."""
        self._req += 1
        return self._req

    # ------------------------------------------------------------ the turn

    def ask(self, turn: Turn, now: float) -> Send:
        """Send `turn`. A question for the placement was for the turn before, and is dropped."""
        self._placement = None
        self.turn, self.answered = Request(COORDINATOR, turn, (), now), False
        return Send(COORDINATOR, turn)

    def is_turn(self, req: int) -> bool:
        """Whether `req` is the number of the current `Turn` request."""
        return self.turn is not None and self.turn.message.req == req

    def answer_turn(self) -> None:
        """Note that the coordinator has answered the current `Turn` request."""
        self.answered = True

    # ------------------------------------------------------------ attempts given back

    def give_back(self, fence: Fence, now: float) -> Send:
        """Tell the coordinator that the attempt with this fence will not count."""
        give_back = GiveBack(self.next_req(), fence)
        self._given_back[give_back.req] = Request(COORDINATOR, give_back, (), now)
        return Send(COORDINATOR, give_back)

    def end_give_back(self, req: int) -> None:
        """Note that the coordinator has answered `GiveBack` number `req`.

        While a registration is open the answer does not count: the coordinator may not have known the lease yet.
        """
        if self._registration is None:
            self._given_back.pop(req, None)

    def forget_given_back(self) -> None:
        """Drop all `GiveBack` requests: a rewind has voided their attempts."""
        self._given_back.clear()

    # ------------------------------------------------------------ placement and registration

    @property
    def is_placing(self) -> bool:
        """Whether a `PlacementRequest` is open."""
        return self._placement is not None

    def place(self, epoch: int, now: float) -> Send:
        """Ask for a placement newer than `epoch`."""
        request = PlacementRequest(self.next_req(), epoch)
        self._placement = Request(COORDINATOR, request, (), now)
        return Send(COORDINATOR, request)

    def end_placement(self) -> None:
        """Drop the question for the placement: the placement has arrived."""
        self._placement = None

    @property
    def is_registering(self) -> bool:
        """Whether a registration is open."""
        return self._registration is not None

    def register(self, introduction: Register, now: float) -> Send:
        """Send the registration `introduction`."""
        self._registration = Request(COORDINATOR, introduction, (), now)
        return Send(COORDINATOR, introduction)

    def end_registration(self, req: int) -> bool:
        """Note that the coordinator has answered registration `req`. False if that registration is not open."""
        if self._registration is None or self._registration.message.req != req:
            return False
        self._registration = None
        return True

    def forget_turn(self) -> None:
        """Drop the `Turn` and all `GiveBack` requests: the coordinator has evicted this worker."""
        self.turn = None
        self._given_back.clear()

    # ------------------------------------------------------------ again

    def give_back_again(self, now: float) -> list[Send]:
        """Send all open `GiveBack` requests to the new coordinator, each with a new number."""
        fences = [asked.message.fence for asked in self._given_back.values()]
        self._given_back.clear()
        return [self.give_back(fence, now) for fence in fences]

    def ask_again(self, now: float) -> list[Send]:
        """Repeat at once the `PlacementRequest` and the `Turn`, if they are not answered."""
        out = [] if self._placement is None else [self._placement.again(now)]
        if self.turn is not None and not self.answered:
            out.append(self.turn.again(now))
        return out

    def repeat(self, now: float, *, waiting: bool, progress: int, declared: int) -> list[Send]:
        """Repeat `Register`, `PlacementRequest` and `Turn` if due.

        With `waiting`, repeat also a `Turn` that is answered: its lease may be void.


        Perhaps a new coordinator is the first to receive the registration, so `progress` and `declared` in it are
        brought up to date. The leases in it are not: the worker asks anew for a lease that was granted since.
        """
        asked = self._registration
        if asked is not None and asked.is_due(now, self.resend_s):
            asked.message = msgspec.structs.replace(asked.message, progress=progress, declared=declared)
        turn = self.turn if waiting or not self.answered else None
        opened: tuple[Request[Message] | None, ...] = (self._registration, self._placement, turn)
        return [asked.again(now) for asked in opened if asked is not None and asked.is_due(now, self.resend_s)]

    def repeat_given_back(self, now: float) -> list[Send]:
        """Repeat the `GiveBack` requests that have waited long enough for an answer."""
        return [asked.again(now) for asked in self._given_back.values() if asked.is_due(now, self.resend_s)]
