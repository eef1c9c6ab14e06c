"""The worker's registration with the coordinator: the first one, and later ones with new coordinators."""

from __future__ import annotations

import msgspec

from paceline.core.effects import Send
from paceline.core.worker.model_state import ModelState
from paceline.core.worker.requests import CoordinatorRequests
from paceline.core.worker.turn import CurrentTurn
from paceline.messages import HeldLease, Register, Welcome


class Registration:
    """The worker's registration. Only its methods change it.

    `generation` is that of the newest coordinator known. A worker that was evicted registers again, without a lease.
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
        """Make a registration with a new request number, the worker's present progress, and `leases`."""
        return msgspec.structs.replace(
            self.introduction,
            req=self._requests.next_req(),
            incarnation=self._model.incarnation,
            progress=self._turn.progress,
            declared=self._turn.declared,
            leases=leases,
        )

    def renew(self, leases: tuple[HeldLease, ...], now: float) -> Send:
        """Register with a new coordinator, and name the `leases` that this worker holds."""
        return self._requests.register(self.introduce(leases), now)

    def evict(self, now: float) -> Send:
        """Note that the coordinator has evicted this worker, and register again without a lease."""
        self._is_evicted = True
        return self._requests.register(self.introduce(), now)

    def welcome(self, welcome: Welcome) -> bool:
        """Note the coordinator's welcome; False if it does not answer the open registration."""
        return self.accepts(welcome.generation) and self._requests.end_registration(welcome.req)

    def readmit(self) -> bool:
        """End an eviction, if there is one. True if the worker was evicted."""
        was_evicted, self._is_evicted = self._is_evicted, False
        return was_evicted
