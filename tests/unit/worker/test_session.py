"""A worker's conversation outside of turns."""

from __future__ import annotations

from paceline.messages import Declare, Ok, Refused, Register, ValidatorSpec, Welcome
from paceline.transport.base import Received
from paceline.transport.inproc import InprocHub
from paceline.worker.session import Session


def test_a_worker_that_was_taken_for_lost_registers_again_and_asks_anew() -> None:
    hub = InprocHub()
    coordinator = hub.port("coordinator/1", listen="coordinator")
    seen: list[str] = []

    def pump() -> bool:
        busy = False
        while (event := coordinator.recv(0)) is not None:
            busy = True
            if isinstance(event, Received):
                message = event.message
                seen.append(type(message).__name__)
                if isinstance(message, Register):
                    coordinator.send(event.peer, Welcome(message.req, 1, 0, None, 0.5))
                elif isinstance(message, Declare):
                    known = seen.count("Register") == 2
                    reply = Ok(message.req) if known else Refused(message.req, "unknown", "register first")
                    coordinator.send(event.peer, reply)
        return busy

    hub.add_pump(pump)
    port = hub.port("worker-0/1")
    session = Session(port, Register(1, "worker", "worker-0", 1, "here"), timeout_s=5.0)
    assert coordinator.address is not None
    session.open(coordinator.address)
    session.ask(lambda req: Declare(req, ValidatorSpec(0, "accuracy", 1, 10, 10)), Ok)
    assert seen == ["Register", "Declare", "Register", "Declare"]
    port.close()
    coordinator.close()
