"""What encryption costs: messages of 1 MiB frames between two processes by TCP on loopback, each acknowledged.

    python bench/crypt.py --rounds 5 --json crypt.json

- plain: ZeroMQ without encryption, as between processes of one host with PACELINE_LANE=tcp
- curve: ZeroMQ with its own encryption, as between hosts whose TCP ports are not open to each other
- sealed: a connection sealed with AES-GCM, as between hosts
- insecure: the same with insecure blocks: headers are sealed, frames are not

CPU time is that of both processes, with all their threads, for each gigabyte (10^9 bytes).
"""

from __future__ import annotations

import functools
import multiprocessing as mp
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

import figures
import plots
import tables
from harness import ContenderError, Label, Results, parser, run_rounds, select

from paceline.messages import BlockFrame, Ok, Push
from paceline.transport.base import Event, PeerUp, Received
from paceline.transport.zmq.port import ZmqPort
from paceline.types import Fence

TOKEN = bytes(range(32))
FRAME_NBYTES = 1 << 20
SIZES = (25, 100)
WAYS = ("plain", "curve", "sealed", "insecure")
TARGETS = {"sealed_over_curve.25": "≥ 4", "sealed_over_curve.100": "≥ 4"}
PATIENCE_S = 30.0


def _port(way: str, node: str, *, listens: bool) -> ZmqPort:
    return ZmqPort(
        node,
        TOKEN,
        listen="127.0.0.1" if listens else None,
        encrypt=way != "plain",
        local=False,
        insecure_blocks=way == "insecure",
        one_port=way == "curve",
    )


def _answer(way: str, pipe: Connection) -> None:
    """Acknowledge every push until the pipe says stop; then tell the CPU time since the first push."""
    port = _port(way, "server/1", listens=True)
    pipe.send(port.address)
    began = None
    while not pipe.poll():
        event = port.recv(0.05)
        if isinstance(event, Received):
            began = time.process_time() if began is None else began
            port.send(event.peer, Ok(event.message.req))  # type: ignore[attr-defined]
    pipe.send(time.process_time() - (began or 0.0))
    port.close()


def _until(port: ZmqPort, kind: type[Event]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not isinstance(port.recv(0.05), kind):
        if time.monotonic() > deadline:
            raise ContenderError(f"no {kind.__name__} within {PATIENCE_S:.0f} s")


def _measure(way: str, size: int, seconds: float) -> dict[str, float]:
    mine, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(target=_answer, args=(way, theirs), daemon=True)
    process.start()
    port = _port(way, "worker/1", listens=False)
    try:
        port.connect(mine.recv())
        _until(port, PeerUp)
        count = size * 1_000_000 // FRAME_NBYTES
        frames = [port.memory.allocate(FRAME_NBYTES) for _ in range(count)]
        for number, frame in enumerate(frames):
            frame[:] = bytes([number % 256]) * FRAME_NBYTES
        blocks = tuple(BlockFrame(number, "float32", FRAME_NBYTES // 4) for number in range(count))
        times: list[float] = []
        end = float("inf")
        cpu = time.process_time()
        while time.perf_counter() < end or len(times) < 5:
            began = time.perf_counter()
            delivery = port.send("server/1", Push(len(times), 0, 0, 0, 0, Fence(1, 1), 0, blocks), frames)
            _until(port, Received)
            while not delivery.done:
                port.recv(0)
            times.append(time.perf_counter() - began)
            end = began + seconds if end == float("inf") else end
        cpu = time.process_time() - cpu
        mine.send("stop")
        cpu += mine.recv()
        gigabytes = count * FRAME_NBYTES / 1e9
        return {
            f"{way}_{size}": gigabytes / statistics.median(times[1:]),
            f"{way}_cpu_{size}": cpu / (gigabytes * len(times)),
        }
    finally:
        port.close()
        process.terminate()
        process.join()


def contenders(sizes: Sequence[int], seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {f"{way} {size} MB": functools.partial(_measure, way, size, seconds) for size in sizes for way in WAYS}


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | None]]:
    """The ratios of bytes a second, and of CPU time, by name and size; None if a part was not measured."""

    def over(first: str, second: str) -> dict[str, float | None]:
        return {
            str(size): figures.ratio(values.get(f"{first}_{size}", []), values.get(f"{second}_{size}", []))
            for size in SIZES
        }

    return {
        "sealed_over_curve": over("sealed", "curve"),
        "sealed_over_plain": over("sealed", "plain"),
        "sealed_over_insecure": over("sealed", "insecure"),
        "insecure_over_plain": over("insecure", "plain"),
        "sealed_cpu_over_curve": over("sealed_cpu", "curve_cpu"),
        "sealed_cpu_over_plain": over("sealed_cpu", "plain_cpu"),
    }


def main() -> int:
    """Run the rounds, print the tables, write the JSON and the plot."""
    options = parser("crypt", __doc__)
    options.add_argument("--seconds", type=float, default=1.0, help="of each measurement [1]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    sizes = SIZES[:1] if args.quick else SIZES
    labels = {
        key: label
        for size in SIZES
        for way in WAYS
        for key, label in (
            (f"{way}_{size}", Label(group="bytes a second", name=way, unit="GB/s", x=size)),
            (f"{way}_cpu_{size}", Label(group="CPU time of both processes", name=way, unit="s/GB", x=size)),
        )
    }
    results = Results("crypt", labels, TARGETS, ratios, args.json)
    run_rounds(results, select(contenders(sizes, args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
