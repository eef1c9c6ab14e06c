"""How a worker is known to the coordinator: its registration, the coordinator's generation, and registering again."""

from __future__ import annotations

import msgspec

from paceline.core.effects import Send
from paceline.core.worker.model_state import ModelState
from paceline.core.worker.requests import CoordinatorRequests
from paceline.core.worker.turn import CurrentTurn
from paceline.messages import HeldLease, Register, Welcome


class Registration:
    """The worker's registration. Only its methods change it.

    `generation` is the newest coordinator's. A worker that was evicted registers again and has no lease then.
    """

    def __init__(
        self, introduction: Register, turn: CurrentTurn, model: ModelState, requests: CoordinatorRequests
    ) -> None:
        self.introduction = introduction
        self.generation = 0
        self._turn = turn
        self._model = model
        self._requests = requests
        self._is_evicted = False

    def accepts(self, generation: int) -> bool:
        """Note the generation of a coordinator's message; False if an older coordinator sent it."""
        if generation < self.generation:
            return False
        self.generation = generation
        return True

    def introduce(self, leases: tuple[HeldLease, ...] = ()) -> Register:
        """A registration with a number of its own that says how far this worker is."""
        return msgspec.structs.replace(
            self.introduction,
            req=self._requests.next_req(),
            incarnation=self._model.incarnation,
            progress=self._turn.progress,
            declared=self._turn.declared,
            leases=leases,
        )

    def renew(self, leases: tuple[HeldLease, ...], now: float) -> Send:
        """Register with another coordinator, which learns of these leases."""
        return self._requests.register(self.introduce(leases), now)

    def evict(self, now: float) -> Send:
        """The coordinator took this worker for lost: register with nothing in hand."""
        self._is_evicted = True
        return self._requests.register(self.introduce(), now)

    def welcome(self, welcome: Welcome) -> bool:
        """Note the coordinator's welcome; False if it does not answer the open registration."""
        return self.accepts(welcome.generation) and self._requests.end_registration(welcome.req)

    def readmit(self) -> bool:
        """Whether the worker had been evicted until now."""
        was_evicted, self._is_evicted = self._is_evicted, False
        return was_evicted
