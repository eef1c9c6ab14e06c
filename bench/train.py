"""Samples per second of a training loop on Paceline beside its peers, in interleaved rounds.

    python bench/train.py --rounds 5 --json train.json

Contenders, each with one thread per worker and a slot batch of 64: `bsp` and `asp` (2 workers, 1 server), `one` (1
worker, 1 server), DDP on Gloo with 2 processes, a parameter server of torch RPC and one of Ray actors with 2 trainers
each (`loop_rpc.py` and `loop_ray.py` say which design), two independent processes, one plain process. The processes of
a contender start together, have the same number of warm-up turns, and run for the same time. Only completed steps
count. There are no checkpoints: bench/checkpoint.py measures them. The machine is noisy: compare only figures of the
same run. Without Ray its contender is left out, and the results say so.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence

import figures
import plots
import tables
from harness import Label, Results, parser, run_paceline, run_plain, run_rounds, select

BATCH = 64
WARMUP = {"lenet": 50, "mlp": 5}
TITLES = {"lenet": "LeNet", "mlp": "MLP 784-4096-4096-10"}
NAMES = {
    "bsp": "Paceline bsp, 2 workers, 1 server",
    "asp": "Paceline asp, 2 workers, 1 server",
    "ddp": "DDP on Gloo, 2 processes",
    "rpc": "torch RPC parameter server, 2 trainers",
    "ray_ps": "Ray actor parameter server, 2 workers",
    "independent": "two independent processes",
    "one": "Paceline, 1 worker, 1 server",
    "plain": "one plain process",
}
RATIOS = {
    "lenet_bsp_over_ddp": ("lenet", "bsp", "ddp"),
    "lenet_bsp_over_independent": ("lenet", "bsp", "independent"),
    "lenet_asp_over_independent": ("lenet", "asp", "independent"),
    "mlp_bsp_over_ddp": ("mlp", "bsp", "ddp"),
    "mlp_bsp_over_independent": ("mlp", "bsp", "independent"),
    "lenet_one_over_plain": ("lenet", "one", "plain"),
    "mlp_one_over_plain": ("mlp", "one", "plain"),
    "lenet_over_rpc": ("lenet", "bsp", "rpc"),
    "mlp_over_rpc": ("mlp", "bsp", "rpc"),
    "lenet_over_ray_ps": ("lenet", "bsp", "ray_ps"),
    "mlp_over_ray_ps": ("mlp", "bsp", "ray_ps"),
}
WITHOUT_RAY = (
    "The contender ray_ps was left out: Ray is not installed here. "
    "Run: python -m pip install -c constraints.txt -e '.[ray]'"
)
TARGETS = {
    "lenet_bsp_over_ddp": "≥ 1.2",
    "lenet_bsp_over_independent": "≥ 0.6",
    "lenet_asp_over_independent": "≥ 0.8",
    "mlp_bsp_over_ddp": "≥ 1.2",
    "mlp_bsp_over_independent": "≥ 0.9",
    "lenet_one_over_plain": "≥ 0.95",
    "mlp_one_over_plain": "≥ 0.97",
}


def _options(model: str, seconds: float) -> list[str]:
    return ["--model", model, "--batch-size", str(BATCH), "--warmup", str(WARMUP[model]), "--seconds", str(seconds)]


def _timeout_s(seconds: float) -> float:
    return 120.0 + 10 * seconds


def _paceline(model: str, key: str, workers: int, mode: str, seconds: float) -> dict[str, float]:
    slots = workers if mode == "bsp" else 1
    marks = run_paceline(
        "loop_paceline.py", *_options(model, seconds),
        workers=workers, mode=mode, slots=slots, timeout_s=_timeout_s(seconds),
    )  # fmt: skip
    return {f"{model}_{key}": figures.joint_rate(marks, WARMUP[model], slots * BATCH)}


def _ddp(model: str, seconds: float) -> dict[str, float]:
    marks = run_plain(
        "loop_plain.py", *_options(model, seconds), "--ddp", processes=2, timeout_s=_timeout_s(seconds)
    )  # fmt: skip
    return {f"{model}_ddp": figures.joint_rate(list(marks.values()), WARMUP[model], 2 * BATCH)}


def _rpc(model: str, seconds: float) -> dict[str, float]:
    marks = run_plain(
        "loop_rpc.py", *_options(model, seconds), processes=3, silent=1, timeout_s=_timeout_s(seconds)
    )  # fmt: skip
    return {f"{model}_rpc": figures.joint_rate(list(marks.values()), WARMUP[model], 2 * BATCH)}


def _ray_ps(model: str, seconds: float) -> dict[str, float]:
    """One process starts Ray, whose two workers write marks."""
    marks = run_plain(
        "loop_ray.py", *_options(model, seconds), processes=1, cases=2, timeout_s=_timeout_s(seconds)
    )  # fmt: skip
    return {f"{model}_ray_ps": figures.joint_rate(list(marks.values()), WARMUP[model], 2 * BATCH)}


def has_ray() -> bool:
    """Whether Ray is installed here."""
    return importlib.util.find_spec("ray") is not None


def _separate(model: str, key: str, processes: int, seconds: float) -> dict[str, float]:
    marks = run_plain(
        "loop_plain.py", *_options(model, seconds), processes=processes, timeout_s=_timeout_s(seconds)
    )  # fmt: skip
    return {f"{model}_{key}": sum(figures.separate_rates(list(marks.values()), WARMUP[model], BATCH))}


def contenders(models: Sequence[str], seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name. Contenders that are compared run one after the other."""
    taken: dict[str, Callable[[], Mapping[str, float]]] = {}
    for model in models:
        each = {
            "asp": functools.partial(_paceline, model, "asp", 2, "asp", seconds),
            "independent": functools.partial(_separate, model, "independent", 2, seconds),
            "bsp": functools.partial(_paceline, model, "bsp", 2, "bsp", seconds),
            "ddp": functools.partial(_ddp, model, seconds),
            "rpc": functools.partial(_rpc, model, seconds),
            "ray_ps": functools.partial(_ray_ps, model, seconds),
            "one": functools.partial(_paceline, model, "one", 1, "bsp", seconds),
            "plain": functools.partial(_separate, model, "plain", 1, seconds),
        }
        taken |= {f"{model} {key}": run for key, run in each.items() if key != "ray_ps" or has_ray()}
    return taken


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The ratios, by name; None if a part was not measured."""
    return {
        name: figures.ratio(values.get(f"{model}_{top}", []), values.get(f"{model}_{bottom}", []))
        for name, (model, top, bottom) in RATIOS.items()
    }


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("train", __doc__)
    options.add_argument("--models", nargs="+", default=list(WARMUP), choices=list(WARMUP), help="[lenet mlp]")
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement, after the warm-up [4]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.models, args.seconds = ["lenet"], 0.5
    labels = {
        f"{model}_{key}": Label(group=TITLES[model], name=name, unit="samples/s")
        for model in args.models
        for key, name in NAMES.items()
    }
    results = Results("train", labels, TARGETS, ratios, args.json)
    if not has_ray():
        print(WITHOUT_RAY, flush=True)
        results.notes.append(WITHOUT_RAY)
    run_rounds(results, select(contenders(args.models, args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
