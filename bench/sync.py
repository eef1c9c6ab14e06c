"""One synchronised step without compute: Paceline beside Gloo's all-reduce and beside the limit of the memory.

    python bench/sync.py --rounds 7 --json sync.json
    python bench/sync.py --rounds 3 --json sync-4.json --workers 4 --sizes 25 100 400

The gradients exist; a step ends when the weights of the next version are in every worker. SGD with momentum 0.9, one
slot and one thread per worker, one server. `gloo` is the all-reduce of one flat gradient (above 25 MB also in buckets
of 25 MB; the faster of the two counts), the division, and `torch.optim.SGD` on each rank, one thread each. `copy` is a
copy of the parameters on one thread; figures.memory_limit_s computes the memory limit from it. `floor` is the least
time of a step by limits.py, measured in the same rounds for each size and number of workers. MB are 10^6 bytes. The
machine is noisy: compare only figures of the same run.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import figures
import limits
import plots
import tables
from harness import Label, Results, num_cores, parser, run_paceline, run_plain, run_rounds, select

SIZES = (0.25, 25.0, 100.0, 400.0)
USUAL_SIZES = SIZES[:3]
USUAL_WORKERS = 2
WORKERS = (2, 4)
LANES = {"shm": "", "tcp": "tcp"}
NAMES = {
    "shm": "Paceline, shared memory",
    "tcp": "Paceline, TCP",
    "gloo": "Gloo + optimizers",
    "copy": "copy, 1 thread",
    "floor_shm": "floor, shared memory",
    "floor_tcp": "floor, TCP",
}
PUSH_PULL_MB = 100.0
TARGETS = {
    "shm_over_gloo.0.25": "≤ 0.9",
    "shm_over_gloo.25": "≤ 0.35",
    "shm_over_gloo.100": "≤ 0.35",
    "tcp_over_gloo.25": "≤ 1",
    "tcp_over_gloo.100": "≤ 1",
    "shm_over_floor.100": "≤ 1.12",
    "tcp_over_floor.100": "≤ 1.08",
    "shm_over_memory_limit.100": "≤ 2.5",
    "tcp_push_pull_gb_per_s": "≥ 2",
}


def warmup(mb: float) -> int:
    """The number of turns after which buffers are mapped and caches are warm."""
    return 50 if mb < 1 else 5 if mb < 50 else 3


def timeout_s(mb: float, workers: int, seconds: float) -> float:
    """Long enough for a machine that is ten times slower; short enough to report a hang within the hour."""
    return 120.0 + 10 * seconds + 0.2 * mb * workers


def _paceline(mb: float, workers: int, lane: str, seconds: float) -> list[float]:
    marks = run_paceline(
        "loop_sync.py", "--mb", f"{mb:g}", "--seconds", str(seconds), "--warmup", str(warmup(mb)),
        workers=workers, slots=workers, lane=LANES[lane], timeout_s=timeout_s(mb, workers, seconds),
    )  # fmt: skip
    return figures.step_times(marks, warmup(mb))


def _lane(mb: float, workers: int, lane: str, seconds: float) -> dict[str, float]:
    """Milliseconds per step: the median over the steps."""
    return {f"{lane}_{workers}_{mb:g}": statistics.median(_paceline(mb, workers, lane, seconds)) * 1e3}


def _floors(mb: float, workers: int) -> dict[str, float]:
    shm, tcp = limits.floors(int(mb * 1e6), workers)
    return {f"floor_shm_{workers}_{mb:g}": shm, f"floor_tcp_{workers}_{mb:g}": tcp}


def _push_pull(mb: float, seconds: float) -> dict[str, float]:
    step_s = statistics.median(_paceline(mb, 1, "tcp", seconds))
    return {"tcp_push_pull": figures.push_pull_gb_per_s(int(mb * 1e6), step_s)}


def _peers(sizes: Sequence[float], workers: int, seconds: float, *, copy: bool) -> dict[str, float]:
    """Milliseconds by size, of the faster variant."""
    ways = {mb: ["copy"] if copy else ["flat", "buckets"] if mb > 25 else ["flat"] for mb in sizes}
    marks = run_plain(
        "loop_gloo.py", "--mb", *(f"{mb:g}" for mb in sizes), "--seconds", str(seconds),
        "--warmup", *(str(warmup(mb)) for mb in sizes), *(["--copy"] if copy else []),
        processes=workers, cases=sum(len(names) for names in ways.values()),
        timeout_s=sum(timeout_s(mb, workers, 2 * seconds) for mb in sizes),
    )  # fmt: skip
    found = {}
    for mb in sizes:
        medians = []
        for way in ways[mb]:
            ranks = [marks[f"{way}-{mb:g}.rank-{rank}"] for rank in range(workers)]
            medians.append(statistics.median(figures.step_times(ranks, warmup(mb))) * 1e3)
        found[f"copy_{mb:g}" if copy else f"gloo_{workers}_{mb:g}"] = min(medians)
    return found


def contenders(sizes: Mapping[int, Sequence[float]], seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name; `sizes` are by the number of workers."""
    taken: dict[str, Callable[[], Mapping[str, float]]] = {}
    every = sorted({mb for some in sizes.values() for mb in some})
    taken["copy"] = functools.partial(_peers, every, 1, seconds / 4, copy=True)
    for workers, some in sizes.items():
        taken[f"gloo, {workers} workers"] = functools.partial(_peers, some, workers, seconds / 2, copy=False)
        for mb in some:
            for lane in LANES:
                name = f"{lane}, {workers} workers, {mb:g} MB"
                taken[name] = functools.partial(_lane, mb, workers, lane, seconds)
            taken[f"floor, {workers} workers, {mb:g} MB"] = functools.partial(_floors, mb, workers)
    mb = PUSH_PULL_MB if PUSH_PULL_MB in every else every[-1]
    taken[f"tcp, 1 worker, {mb:g} MB"] = functools.partial(_push_pull, mb, seconds)
    return taken


def labels(sizes: Mapping[int, Sequence[float]]) -> dict[str, Label]:
    """The labels of all figures, in the order of the table."""
    shown = {}
    for workers, some in sizes.items():
        for mb in some:
            for key in ("shm", "tcp", "gloo", "floor_shm", "floor_tcp"):
                shown[f"{key}_{workers}_{mb:g}"] = Label(group=f"{workers} workers", name=NAMES[key], unit="ms", x=mb)
            if workers == 2:
                shown[f"copy_{mb:g}"] = Label(group="2 workers", name=NAMES["copy"], unit="ms", x=mb)
    shown["tcp_push_pull"] = Label(group="push + pull, 1 worker, TCP", name="both ways", unit="GB/s")
    return shown


def _beside(values: Mapping[str, Sequence[float]], workers: int) -> dict[str, dict[str, float | None]]:
    """The ratios of steps with this many workers, by name and size. Names have a suffix unless there are 2 workers."""
    found: dict[str, dict[str, float | None]] = {}
    suffix = "" if workers == USUAL_WORKERS else f"_{workers}_workers"
    for name, lane, peer in (
        ("shm_over_gloo", "shm", "gloo"),
        ("tcp_over_gloo", "tcp", "gloo"),
        ("shm_over_floor", "shm", "floor_shm"),
        ("tcp_over_floor", "tcp", "floor_tcp"),
    ):
        found[name + suffix] = {
            f"{mb:g}": figures.ratio(
                values.get(f"{lane}_{workers}_{mb:g}", []), values.get(f"{peer}_{workers}_{mb:g}", [])
            )
            for mb in SIZES
        }
    return found


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The ratios, by name; None if a part was not measured. Those of 4 workers are there if any was measured."""
    found: dict[str, Any] = dict(_beside(values, USUAL_WORKERS))
    found["shm_over_memory_limit"] = {}
    for mb in SIZES:
        limited = [figures.memory_limit_s(copy, 2, num_cores()) for copy in values.get(f"copy_{mb:g}", [])]
        found["shm_over_memory_limit"][f"{mb:g}"] = figures.ratio(values.get(f"shm_2_{mb:g}", []), limited)
    speeds = values.get("tcp_push_pull", [])
    found["tcp_push_pull_gb_per_s"] = statistics.median(speeds) if speeds else None
    for workers in WORKERS[1:]:
        more = _beside(values, workers)
        if any(value is not None for by_size in more.values() for value in by_size.values()):
            found |= more
    return found


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("sync", __doc__)
    options.add_argument("--sizes", type=float, nargs="+", default=USUAL_SIZES, metavar="MB", help="[0.25 25 100]")
    options.add_argument("--workers", type=int, nargs="+", default=[USUAL_WORKERS], help="[2]")
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement, after the warm-up [2]")
    options.add_argument("--all", action="store_true", help="all sizes with 2 and with 4 workers, which takes long")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.sizes, args.workers, args.seconds = [0.25], [2], 0.3
    elif args.all:
        args.sizes, args.workers = SIZES, WORKERS
    sizes = {workers: list(args.sizes) for workers in args.workers}
    results = Results("sync", labels(sizes), TARGETS, ratios, args.json)
    results.notes.append(
        f"The memory limit is the time of a copy of the parameters on one thread, times 2 × workers (each worker's "
        f"gradient out and weights in) plus (workers + 4) / 2 (the server reads every gradient once, and reads and "
        f"writes weights and momentum; a copy reads and writes once), divided by {num_cores()} cores: "
        f"{figures.memory_limit_s(1.0, 2, num_cores()):g} copies for 2 workers."
    )
    results.notes.append(
        "A floor is measured as in bench/limits.py: the copies of all workers, two at once; the sum of their gradients "
        "and SGD on two cores; over TCP also all bytes over loopback with plain sockets."
    )
    run_rounds(results, select(contenders(sizes, args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
