"""A process with one ZeroMQ port, for tests that must kill, stop or flood a real peer.

`python -m tests.kit.peer {listen PORT | connect ADDRESS} NODE`, with the token in PEER_TOKEN and PEER_ENCRYPT=1 for
encrypted connections, answers `Ok` with `Ok`,
`StatusRequest` with its counters and a push with the CRC of each frame. It keeps frames that are pushed for slot
`KEEP`. It answers a pull of block n with n patterned bytes; a pull of `DROP` drops the kept frames, and a pull of
`FORK` drops them in a fork. It ends when its standard input ends.
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
from paceline.messages import BlockFrame, Message, Ok, Pull, PullReply, Push, PushAck, StatusReply, StatusRequest
from paceline.transport.base import Frame, Received
from paceline.transport.zmq.port import ZmqPort

KEEP = 7
DROP, FORK = -1, -2


def main(mode: str, where: str, node: str) -> None:
    token = bytes.fromhex(os.environ["PEER_TOKEN"])
    listens = mode == "listen"
    encrypt = bool(int(os.environ.get("PEER_ENCRYPT", "0"))) or None
    port = ZmqPort(
        node, token, listen="127.0.0.1" if listens else None, port=int(where) if listens else 0, encrypt=encrypt
    )
    if not listens:
        port.connect(where)
    print(port.address, flush=True)
    kept: list[Received] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        event = port.recv(0.1)
        if not isinstance(event, Received):
            continue
        answer, frames = answer_to(port, event, kept)
        if answer is not None:
            with contextlib.suppress(PeerLostError, PeerUnknownError):  # the peer that asked has ended
                port.send(event.peer, answer, frames)
        del event, frames
    port.close()


def answer_to(port: ZmqPort, event: Received, kept: list[Received]) -> tuple[Message | None, list[Frame]]:
    """The answer to a message, with its frames."""
    match event.message:
        case Pull(req=req, blocks=(nbytes,)) if nbytes > 0:
            frame = port.memory.allocate(nbytes)
            frame[:] = pattern(nbytes)
            return PullReply(req, 0, 1, 1, (BlockFrame(0, "uint8", nbytes),)), [frame]
        case Pull(req=req, blocks=(order,)):
            if order == DROP:
                kept.clear()
            elif os.fork() == 0:
                kept.clear()
                del event
                os._exit(0)
            else:
                os.wait()
            return Ok(req), []
        case Push(slot=slot) if slot == KEEP:
            kept.append(event)
    return plain_answer(port, event), []


def pattern(nbytes: int) -> bytes:
    """Bytes whose value depends on their position."""
    return (b"".join(i.to_bytes(4) for i in range(1 << 12)) * (nbytes // (1 << 14) + 1))[:nbytes]


def plain_answer(port: ZmqPort, event: Received) -> Message | None:
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
def peer_process(token: bytes, *arguments: str, encrypt: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running peer and the address that it printed; the process is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.peer", *arguments],
        env=os.environ
        | {"PEER_TOKEN": token.hex(), "PEER_ENCRYPT": str(int(encrypt)), "PYTHONPATH": os.pathsep.join(sys.path)},
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
