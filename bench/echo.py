"""Round trip of a small message: the answering side uses a blocking poll or an asyncio loop, in turn.

python bench/echo.py --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import statistics
import time
from multiprocessing.connection import Connection

import zmq
import zmq.asyncio

COUNT = 3000


def _blocking(pipe: Connection) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    while True:
        poller.poll()
        parts = socket.recv_multipart()
        socket.send_multipart(parts)
        if parts[-1] == b"end":
            return


def _asyncio(pipe: Connection) -> None:
    async def serve() -> None:
        socket = zmq.asyncio.Context().socket(zmq.ROUTER)
        pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
        while True:
            parts = await socket.recv_multipart()
            await socket.send_multipart(parts)
            if parts[-1] == b"end":
                return

    asyncio.run(serve())


def measure(target: object) -> float:
    """Median round trip in microseconds."""
    mine, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=target, args=(theirs,))  # type: ignore[arg-type]
    process.start()
    port = mine.recv()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        times = []
        for number in range(COUNT):
            began = time.perf_counter()
            socket.send(b"x" * 100)
            socket.recv()
            if number > COUNT // 10:
                times.append(time.perf_counter() - began)
        socket.send(b"end")
        socket.recv()
    process.join()
    return statistics.median(times) * 1e6


def main() -> None:
    """Measure both in turn; print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    blocking, looped = [], []
    for _ in range(rounds):
        blocking.append(measure(_blocking))
        looped.append(measure(_asyncio))
    a, b = statistics.median(blocking), statistics.median(looped)
    print(f"blocking poll {a:.0f} µs, asyncio {b:.0f} µs, ratio {b / a:.2f}")


if __name__ == "__main__":
    main()
