"""The cost of a copy of every block: one synchronised step without compute, --replicas 1 beside --replicas 0.

    python bench/replicas.py --rounds 5 --json replicas.json

As in sync.py, the gradients exist, and a step ends when the weights of the next version are in every worker. SGD with
momentum 0.9, 2 workers with one slot and one thread each, and 2 servers in both cases. With a copy each server is the
primary of one half of the blocks and the backup of the other half. `--replicas 1` sends the sum of the gradients once
more, and makes every update twice. MB are 10^6 bytes.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import figures
import plots
import tables
from harness import Label, Results, parser, run_paceline, run_rounds, select
from sync import LANES, timeout_s, warmup

SIZE = 100.0
WORKERS, SERVERS = 2, 2
NAMES = {0: "without copies", 1: "--replicas 1"}
TARGETS = {"replicas_over_none": "≤ 1.6"}


def _step(mb: float, lane: str, replicas: int, seconds: float) -> dict[str, float]:
    """Milliseconds per step: the median over the steps."""
    marks = run_paceline(
        "loop_sync.py", "--mb", f"{mb:g}", "--seconds", str(seconds), "--warmup", str(warmup(mb)),
        workers=WORKERS, slots=WORKERS, servers=SERVERS, replicas=replicas, lane=LANES[lane],
        timeout_s=timeout_s(mb, WORKERS, seconds),
    )  # fmt: skip
    return {f"{lane}_{replicas}": statistics.median(figures.step_times(marks, warmup(mb))) * 1e3}


def contenders(mb: float, seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {
        f"{lane}, {NAMES[replicas]}": functools.partial(_step, mb, lane, replicas, seconds)
        for lane in LANES
        for replicas in NAMES
    }


def labels(mb: float) -> dict[str, Label]:
    """The labels of all figures, in the order of the table."""
    lanes = {"shm": "shared memory", "tcp": "TCP"}
    group = f"{mb:g} MB, {WORKERS} workers, {SERVERS} servers"
    return {
        f"{lane}_{replicas}": Label(group=group, name=f"{lanes[lane]}, {NAMES[replicas]}", unit="ms")
        for lane in LANES
        for replicas in NAMES
    }


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The ratios, by name; None if a part was not measured."""
    return {
        "replicas_over_none": figures.ratio(values.get("shm_1", []), values.get("shm_0", [])),
        "replicas_over_none_tcp": figures.ratio(values.get("tcp_1", []), values.get("tcp_0", [])),
    }


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("replicas", __doc__)
    options.add_argument("--size", type=float, default=SIZE, metavar="MB", help=f"[{SIZE:g}]")
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement, after the warm-up [2]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.size, args.seconds = 0.25, 0.3
    results = Results("replicas", labels(args.size), TARGETS, ratios, args.json)
    run_rounds(results, select(contenders(args.size, args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
