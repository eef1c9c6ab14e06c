"""The heartbeat finds the coordinator, and finds it again after a restart."""

from __future__ import annotations

import time

from paceline.clients.heartbeat import Heartbeat
from paceline.messages import Beat, BeatAck
from paceline.transport.base import Received
from paceline.transport.zmq.port import ZmqPort

TOKEN = bytes(32)


def beats(port: ZmqPort, number: int) -> list[Beat]:
    """Answer heartbeats until `number` have arrived."""
    heard: list[Beat] = []
    deadline = time.monotonic() + 20
    while len(heard) < number:
        assert time.monotonic() < deadline, heard
        match port.recv(0.05):
            case Received(peer=peer, message=Beat() as beat):
                assert peer == "worker-0/1#beat"
                heard.append(beat)
                port.send(peer, BeatAck(1, "running", True))
    return heard


def test_a_coordinator_that_restarts_at_another_address_is_found() -> None:
    where: list[str] = []
    beat = Heartbeat(
        lambda: ZmqPort("worker-0/1#beat", TOKEN), lambda: where[-1] if where else None, "worker-0/1", 0.05
    )
    beat.start()
    try:
        first = ZmqPort("coordinator/1", TOKEN, listen="127.0.0.1")
        assert first.address is not None
        time.sleep(0.1)  # no address is announced yet
        where.append(first.address)
        assert {b.node for b in beats(first, 3)} == {"worker-0/1"}
        second = ZmqPort("coordinator/2", TOKEN, listen="127.0.0.1")
        first.close()
        time.sleep(0.4)
        assert beat.silent_s() > 0.2
        assert second.address is not None
        where.append(second.address)
        beats(second, 3)
        deadline = time.monotonic() + 5
        while beat.silent_s() > 0.3:
            beats(second, 1)
            assert time.monotonic() < deadline
        second.close()
    finally:
        beat.close()
