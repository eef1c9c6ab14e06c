"""A process with one ZeroMQ port, for tests that must kill, stop or flood a real peer.

`python -m tests.unit.transport.peer {listen PORT | connect ADDRESS} NODE`, with the token in PEER_TOKEN,
answers `Ok` with `Ok`, `StatusRequest` with its counters and a push with the CRC of each frame. It ends with
its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Message, Ok, Push, PushAck, StatusReply, StatusRequest
from paceline.transport.base import Received
from paceline.transport.zmq import ZmqPort


def main(mode: str, where: str, node: str) -> None:
    token = bytes.fromhex(os.environ["PEER_TOKEN"])
    listens = mode == "listen"
    port = ZmqPort(node, token, listen="127.0.0.1" if listens else None, port=int(where) if listens else 0)
    if not listens:
        port.connect(where)
    print(port.address, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        event = port.recv(0.1)
        if not isinstance(event, Received):
            continue
        answer = answer_to(port, event)
        if answer is not None:
            with contextlib.suppress(PeerLostError, PeerUnknownError):  # whoever asked is gone
                port.send(event.peer, answer)
    port.close()


def answer_to(port: ZmqPort, event: Received) -> Message | None:
    match event.message:
        case Ok(req):
            return Ok(req)
        case StatusRequest(req):
            routes = [route.hex() for route in port._listener._routes] if port._listener else []
            status = {"refused": port.counters.refused, "routes": routes}
            return StatusReply(req, json.dumps(status).encode())
        case Push(req=req):
            return PushAck(req, ",".join(str(zlib.crc32(frame)) for frame in event.frames))
    return None


@contextmanager
def peer_process(token: bytes, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running peer and the address it printed; it is gone, by force if need be, at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.transport.peer", *arguments],
        env=os.environ | {"PEER_TOKEN": token.hex(), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
