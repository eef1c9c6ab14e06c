"""The cost of a slow machine: 2 workers, one of which sleeps three times as long as it computes.

    python bench/straggler.py --rounds 5 --json straggler.json

LeNet, slot batch 64, one thread per worker. The slow worker measures the processor time of its forward and backward
and then sleeps three times as long. The contenders are Paceline in bsp with 16 slots a step, in ssp:4 and in asp (2
workers, 1 server), DDP on Gloo, and the ideal: two independent plain processes, one of them slowed in the same way, at
the same time on the same machine. The sum of their samples per second is (1 + 1/4) times that of the fast one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

import figures
import plots
import tables
from harness import Label, Results, parser, run_paceline, run_plain, run_rounds, select

BATCH = 64
SLOW = 4.0
WARMUP = 20
MODES = {"bsp": ("bsp", 16), "ssp": ("ssp:4", 1), "asp": ("asp", 1)}
NAMES = {
    "bsp": "Paceline bsp, 16 slots",
    "ssp": "Paceline ssp:4",
    "asp": "Paceline asp",
    "ddp": "DDP on Gloo",
    "ideal": "the ideal",
}
TARGETS = {"bsp_over_ideal": "≥ 0.9", "asp_over_ideal": "≥ 0.9"}


def _options(seconds: float) -> list[str]:
    return ["--batch-size", str(BATCH), "--warmup", str(WARMUP), "--seconds", str(seconds), "--slow", str(SLOW)]


def _timeout_s(seconds: float) -> float:
    return 120.0 + 10 * seconds


def _paceline(key: str, seconds: float) -> dict[str, float]:
    mode, slots = MODES[key]
    marks = run_paceline(
        "loop_paceline.py", *_options(seconds), workers=2, mode=mode, slots=slots, timeout_s=_timeout_s(seconds)
    )  # fmt: skip
    return {key: figures.joint_rate(marks, WARMUP, slots * BATCH)}


def _ddp(seconds: float) -> dict[str, float]:
    marks = run_plain("loop_plain.py", *_options(seconds), "--ddp", processes=2, timeout_s=_timeout_s(seconds))
    return {"ddp": figures.joint_rate(list(marks.values()), WARMUP, 2 * BATCH)}


def _ideal(seconds: float) -> dict[str, float]:
    marks = run_plain("loop_plain.py", *_options(seconds), processes=2, timeout_s=_timeout_s(seconds))
    fast, slow = figures.separate_rates([marks["rank-0"], marks["rank-1"]], WARMUP, BATCH)
    return {"ideal": fast + slow}


def contenders(seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {
        "bsp": functools.partial(_paceline, "bsp", seconds),
        "ideal": functools.partial(_ideal, seconds),
        "asp": functools.partial(_paceline, "asp", seconds),
        "ddp": functools.partial(_ddp, seconds),
        "ssp": functools.partial(_paceline, "ssp", seconds),
    }


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The ratios, by name; None if a part was not measured."""
    ideal = values.get("ideal", [])
    return {f"{key}_over_ideal": figures.ratio(values.get(key, []), ideal) for key in ("bsp", "ssp", "asp", "ddp")}


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("straggler", __doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement, after the warm-up [4]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.seconds = 1.0
    labels = {
        key: Label(group="one of 2 workers slowed 4 ×", name=name, unit="samples/s") for key, name in NAMES.items()
    }
    results = Results("straggler", labels, TARGETS, ratios, args.json)
    run_rounds(results, select(contenders(args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
