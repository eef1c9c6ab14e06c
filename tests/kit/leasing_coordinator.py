"""A coordinator on a hub that leases the slots of one phase to one worker, one after the other."""

from __future__ import annotations

from paceline.messages import (
    BeginPhase,
    Grant,
    Message,
    Ok,
    PhaseBegun,
    PhaseOver,
    Prepare,
    Prepared,
    Register,
    Turn,
    Welcome,
)
from paceline.transport.base import Received
from paceline.transport.inproc import InprocHub
from paceline.types import Fence, Placement, Segment


class LeasingCoordinator:
    """Answers every request at once. `sealed` are the steps and weights that the worker has reported.

    There are no servers: the placement is empty, so the worker's core has nothing to read.
    """

    def __init__(self, hub: InprocHub, *, steps: int = 0) -> None:
        self.sealed: list[tuple[int, float]] = []
        self._steps = steps
        self._segment: Segment | None = None
        self._port = hub.port("coordinator/1", listen="coordinator")
        hub.add_pump(self._pump)

    @property
    def address(self) -> str:
        assert self._port.address is not None
        return self._port.address

    def close(self) -> None:
        self._port.close()

    def _pump(self) -> bool:
        busy = False
        while (event := self._port.recv(0)) is not None:
            busy = True
            if isinstance(event, Received):
                self._port.send(event.peer, self._answer(event.message))
        return busy

    def _answer(self, message: Message) -> Message:
        match message:
            case Register(req=req):
                return Welcome(req, 1, 0, None, 0.5, 3.0)
            case Prepare(req=req):
                return Prepared(req, 1, 0, Placement(1, (), {}))
            case BeginPhase(req=req, phase=phase):
                self._segment = Segment(
                    0, 0, 0, 0, self._steps, 1, phase.data_len, 1, phase.batch_size, phase.shuffle, False, 0, "bsp"
                )
                return PhaseBegun(req, 1, self._segment)
            case Turn():
                return self._lease(message)
        return Ok(getattr(message, "req", 0))

    def _lease(self, turn: Turn) -> Message:
        if turn.sealed is not None:
            self.sealed.append((turn.sealed.step, turn.sealed.weight))
        step = len(self.sealed)
        if step == self._steps:
            return PhaseOver(turn.req, 1, 0, 1, 0, -1, step, True, True, {})
        return Grant(turn.req, 1, 0, 1, step, 0, 1, Fence(1, step), self._segment, True)
