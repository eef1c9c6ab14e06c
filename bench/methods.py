"""All-reduce among Paceline's workers beside DDP, in interleaved rounds.

    python bench/methods.py --rounds 5 --json methods.json

Two processes with one thread each, slot batch 64. LeNet and a perceptron of 20 million parameters, with one slot a
worker. Then LeNet with 8 slots a step, where one process sleeps three times as long as it computes: DDP accumulates 4
batches in each process (`no_sync`) and reduces after the last. There are no checkpoints.

Workers of one host share memory; with `PACELINE_LANE=tcp` they sum by Gloo, as those of several hosts do. The machine
is noisy: compare only figures of the same run.
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
SLOTS = 8
CASES = {
    "lenet": "LeNet",
    "mlp": "MLP 784-4096-4096-10",
    "straggler": "LeNet, 8 slots, one of 2 processes slowed 4 ×",
}
WARMUP = {"lenet": 50, "mlp": 5, "straggler": 10}
NAMES = {
    "allreduce": "Paceline allreduce, 2 workers",
    "gloo": "Paceline allreduce by Gloo, 2 workers",
    "ddp": "DDP on Gloo, 2 processes",
}
TARGETS = {
    "allreduce_lenet_over_ddp": "≥ 0.95",
    "allreduce_mlp_over_ddp": "≥ 0.95",
    "allreduce_straggler_over_ddp": "≥ 2",
}


def _options(case: str, seconds: float) -> list[str]:
    model = "mlp" if case == "mlp" else "lenet"
    slow = ["--slow", str(SLOW)] if case == "straggler" else []
    warmup = ["--warmup", str(WARMUP[case]), "--seconds", str(seconds)]
    return ["--model", model, "--batch-size", str(BATCH), *warmup, *slow]


def _timeout_s(seconds: float) -> float:
    return 120.0 + 10 * seconds


def _allreduce(case: str, key: str, seconds: float) -> dict[str, float]:
    slots = SLOTS if case == "straggler" else 2
    marks = run_paceline(
        "loop_paceline.py", *_options(case, seconds),
        workers=2, mode="allreduce", slots=slots, lane="tcp" if key == "gloo" else "", timeout_s=_timeout_s(seconds),
    )  # fmt: skip
    return {f"{case}_{key}": figures.joint_rate(marks, WARMUP[case], slots * BATCH)}


def _ddp(case: str, seconds: float) -> dict[str, float]:
    each = SLOTS // 2 if case == "straggler" else 1
    options = [*_options(case, seconds), "--ddp", "--accumulate", str(each)]
    marks = run_plain("loop_plain.py", *options, processes=2, timeout_s=_timeout_s(seconds))
    return {f"{case}_ddp": figures.joint_rate(list(marks.values()), WARMUP[case], 2 * each * BATCH)}


def contenders(cases: Sequence[str], seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name. Contenders that are compared run one after the other."""
    taken: dict[str, Callable[[], Mapping[str, float]]] = {}
    for case in cases:
        for key in ("allreduce", "gloo"):
            taken[f"{case} {key}"] = functools.partial(_allreduce, case, key, seconds)
        taken[f"{case} ddp"] = functools.partial(_ddp, case, seconds)
    return taken


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The ratios, by name; None if a part was not measured."""
    return {
        f"{key}_{case}_over_ddp": figures.ratio(values.get(f"{case}_{key}", []), values.get(f"{case}_ddp", []))
        for key in ("allreduce", "gloo")
        for case in CASES
    }


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("methods", __doc__)
    options.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="[all]")
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement, after the warm-up [4]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.cases, args.seconds = ["lenet"], 0.5
    labels = {
        f"{case}_{key}": Label(group=CASES[case], name=name, unit="samples/s")
        for case in args.cases
        for key, name in NAMES.items()
    }
    results = Results("methods", labels, TARGETS, ratios, args.json)
    run_rounds(results, select(contenders(args.cases, args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
