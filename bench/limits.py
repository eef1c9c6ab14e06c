"""The limits of this machine: each part of a synchronised step, done by minimal code.

    python bench/limits.py --rounds 5

100 MB of float32, one thread per process:

- a copy alone, and two copies at once (workers copy gradients out and weights in at the same time)
- the sum of two gradients, their mean, and SGD with momentum, in pieces of 1 MiB, on one core and on two
- TCP over loopback with plain blocking sockets, both ends at full speed

The `floor` figures follow from them: the least time of a step with 2 workers and 1 server, without any message, log or
Python between the parts. `sync.py` measures them for other sizes and for 4 workers.
"""

from __future__ import annotations

import functools
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

import figures
import plots
import tables
import torch
from harness import Label, Results, parser, run_rounds, select

NBYTES = 100_000_000
PIECE = 1 << 18
PART_NBYTES = 1 << 20
TURNS = 15
TURNS_OF_SMALL = 300
SMALL_NBYTES = 2_000_000

LABELS = {
    "copy_alone": Label(group="100 MB", name="copy, alone", unit="ms"),
    "copy_two": Label(group="100 MB", name="copy, two at once, each", unit="ms"),
    "pass_alone": Label(group="100 MB", name="sum of 2 and SGD, 1 core", unit="ms"),
    "pass_two": Label(group="100 MB", name="sum of 2 and SGD, half on each of 2 cores", unit="ms"),
    "loopback": Label(group="100 MB", name="TCP over loopback, one way", unit="ms"),
}


def _turns(nbytes: int) -> int:
    return TURNS_OF_SMALL if nbytes < SMALL_NBYTES else TURNS


def _copy(numel: int) -> Callable[[], object]:
    source, target = torch.ones(numel), torch.zeros(numel)
    return lambda: target.copy_(source)


def _pass(numel: int, workers: int = 2) -> Callable[[], object]:
    one, other, *more = (torch.ones(numel).split(PIECE) for _ in range(workers))
    momentum, old, new = (torch.ones(numel).split(PIECE) for _ in range(3))
    room = torch.ones(PIECE)

    def turn() -> None:
        for a, b, m, before, after, *rest in zip(one, other, momentum, old, new, *more, strict=True):
            mean = room[: a.numel()]
            torch.add(a, b, out=mean)
            for each in rest:
                mean.add_(each)
            mean.mul_(1 / workers)
            m.mul_(0.9).add_(mean)
            torch.add(before, m, alpha=-0.01, out=after)

    return turn


def _repeat(make: Callable[[int], Callable[[], object]], numel: int, meet: Barrier, times: Any) -> None:
    torch.set_num_threads(1)
    turn = make(numel)
    turn()
    meet.wait(60.0)
    taken = []
    for _ in range(_turns(4 * numel)):
        began = time.perf_counter()
        turn()
        taken.append(time.perf_counter() - began)
    times.put(statistics.median(taken) * 1e3)


def at_once(make: Callable[[int], Callable[[], object]], numel: int, processes: int) -> float:
    """Milliseconds of a turn while `processes` processes run their turns at the same time."""
    context = multiprocessing.get_context("fork")
    times, meet = context.SimpleQueue(), context.Barrier(processes)
    children = [context.Process(target=_repeat, args=(make, numel, meet, times), daemon=True) for _ in range(processes)]
    for child in children:
        child.start()
    found = [times.get() for _ in children]
    for child in children:
        child.join()
    return statistics.mean(found)


def _receive(address: tuple[str, int], nbytes: int) -> None:
    room = memoryview(bytearray(nbytes))
    with socket.create_connection(address) as here:
        for _ in range(_turns(nbytes)):
            got = 0
            while got < nbytes:
                got += here.recv_into(room[got : got + PART_NBYTES])
            here.sendall(b"!")


def loopback(nbytes: int) -> float:
    """Milliseconds until a peer has received `nbytes`. Both ends reuse their buffers."""
    content = memoryview(bytearray(b"x") * nbytes)
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = multiprocessing.get_context("fork").Process(
            target=_receive, args=(listener.getsockname(), nbytes), daemon=True
        )
        child.start()
        there, _ = listener.accept()
        with there:
            for _ in range(_turns(nbytes)):
                began = time.perf_counter()
                for start in range(0, nbytes, PART_NBYTES):
                    there.sendall(content[start : start + PART_NBYTES])
                there.recv(1)
                taken.append(time.perf_counter() - began)
        child.join()
    return statistics.median(taken[1:]) * 1e3


def contenders(nbytes: int) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The measurements, by name."""
    numel = nbytes // 4
    return {
        "copy": lambda: {"copy_alone": at_once(_copy, numel, 1), "copy_two": at_once(_copy, numel, 2)},
        "pass": lambda: {"pass_alone": at_once(_pass, numel, 1), "pass_two": at_once(_pass, numel // 2, 2)},
        "loopback": lambda: {"loopback": loopback(nbytes)},
    }


def floor_shm_ms(copy_two: float, pass_two: float, workers: int = 2) -> float:
    """The gradients of all workers out and their weights in, two copies at a time, and the pass on two cores."""
    return workers * copy_two + pass_two


def floor_tcp_ms(floor_shm: float, loopback_one_way: float, workers: int = 2) -> float:
    """The floor in shared memory, and the bytes of all workers over loopback in both directions."""
    return 2 * workers * loopback_one_way + floor_shm


def floors(nbytes: int, workers: int = 2) -> tuple[float, float]:
    """Measure both floors of a step with `nbytes` of weights: in shared memory and over TCP, in ms."""
    numel = nbytes // 4
    shm = floor_shm_ms(
        at_once(_copy, numel, 2), at_once(functools.partial(_pass, workers=workers), numel // 2, 2), workers
    )
    return shm, floor_tcp_ms(shm, loopback(nbytes), workers)


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The floors in ms, and the cost of two copies at once; None if a part was not measured."""
    of = {name: statistics.median(values[name]) for name in LABELS if values.get(name)}
    if len(of) < len(LABELS):
        return dict.fromkeys(("floor_shm_ms", "floor_tcp_ms", "floor_tcp_push_pull_gb_per_s", "two_copies_over_one"))
    shm = floor_shm_ms(of["copy_two"], of["pass_two"])
    one_worker = 2 * of["loopback"] + 2 * of["copy_alone"] + of["pass_alone"] / 2
    return {
        "two_copies_over_one": of["copy_two"] / of["copy_alone"],
        "floor_shm_ms": shm,
        "floor_tcp_ms": floor_tcp_ms(shm, of["loopback"]),
        "floor_tcp_push_pull_gb_per_s": figures.push_pull_gb_per_s(NBYTES, one_worker / 1e3),
    }


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    args = parser("limits", __doc__).parse_args()
    if args.plot is not None:
        plots.require()
    results = Results("limits", LABELS, {}, ratios, args.json)
    results.notes.append(
        "`floor_shm_ms` is the time of two copies at once (gradients out), the pass on two cores, and two copies at "
        "once (weights in). `floor_tcp_ms` adds the bytes of both workers over loopback in both directions, which "
        "takes both cores. Push + pull is of one worker. Copies and the pass do not overlap with the network there: it "
        "needs the same cores."
    )
    run_rounds(results, select(contenders(NBYTES // 10 if args.quick else NBYTES), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
