"""The lease of the next turn: asked for, and perhaps granted, while the worker still computes a slot. Rule 22."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.core.worker.model_state import ModelState
from paceline.core.worker.requests import CoordinatorRequests
from paceline.core.worker.turn import CurrentTurn
from paceline.messages import Grant, Sealed, Turn
from paceline.types import Fence


class NextLease:
    """The lease that a worker has besides the one in its hand. Only its methods change it.

    `asked_for` is the fence of the lease in hand for which the open `Turn` asks a next lease; None if no `Turn` does.
    """

    def __init__(self, turn: CurrentTurn, model: ModelState, requests: CoordinatorRequests) -> None:
        self._turn = turn
        self._model = model
        self._requests = requests
        self.asked_for: Fence | None = None
        self._grant: Grant | None = None

    @property
    def fence(self) -> Fence | None:
        """The fence of the next lease; None if there is none."""
        return None if self._grant is None else self._grant.fence

    def ask(self, in_hand: Grant, now: float, report: Sealed | None = None) -> Send:
        """Ask for the lease after the one in hand, and report the slot before, if there is one."""
        self.asked_for, self._grant = in_hand.fence, None
        req, turn = self._requests.next_req(), self._turn
        held = (in_hand.fence,)
        asked = Turn(req, turn.phase, self._model.incarnation, report, None, None, -1, turn.declared, held)
        return self._requests.ask(asked, now)

    def offer(self, grant: Grant) -> bool:
        """Note an answer to that `Turn`; False if it is older than the one that is known."""
        known = self._grant
        if known is not None and _order(grant) <= _order(known):
            return False
        self._grant = grant
        return True

    def take(self, incarnation: int, epoch: int, generation: int) -> Grant | None:
        """Take out the lease for the turn that begins now; None if there is none, or it has become void."""
        grant = self._grant
        self.clear()
        if grant is None or (grant.incarnation, grant.epoch, grant.generation) != (incarnation, epoch, generation):
            return None
        return grant

    def drop(self) -> None:
        """Drop the next lease, which is void. The `Turn` that asks for it is still open."""
        self._grant = None

    def clear(self) -> None:
        """Drop the next lease, and the question for it: the worker asks for one task, without a lease in hand."""
        self.asked_for = self._grant = None


def _order(grant: Grant) -> tuple[int, int, Fence]:
    return grant.incarnation, grant.epoch, grant.fence
