"""Input that costs more than training: samplers and loader processes beside PyTorch's DataLoader.

    python bench/data.py --rounds 5 --json data.json

Costly decoding: JPEG images are decoded and augmented; one worker and 2 samplers on 2 cores. The bound is
min(1/t, 2/(t+p)) with the processor seconds of a sample for training (t) and for preparation (p), measured alone.
Beside it a plain PyTorch loop on a DataLoader with 2 processes. Latency: every read of a sample sleeps 20 ms, and
loader processes of the worker read ahead; beside it the training alone. Large batches: 25 MB go to another process by
a sampler's shared memory, and by the queue of a DataLoader.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import figures
import plots
import tables
from harness import (
    HERE,
    Label,
    Results,
    environment,
    parser,
    read_marks,
    run_paceline,
    run_rounds,
    run_together,
    select,
)

BATCH = 32
WARMUP = 8
WIDTH = 48
READERS = 16
TARGETS = {
    "samplers_over_bound": "≥ 0.85",
    "latency_over_training": "≥ 0.9",
    "samplers_over_dataloader": "≥ 1",
    "shm_over_queue": "≥ 1",
}
LABELS = {
    "samplers": Label(group="JPEG, 2 cores", name="Paceline, 1 worker, 2 samplers", unit="samples/s"),
    "dataloader": Label(group="JPEG, 2 cores", name="DataLoader, 2 processes", unit="samples/s"),
    "bound": Label(group="JPEG, 2 cores", name="the bound", unit="samples/s"),
    "latency": Label(group="reads of 20 ms", name="Paceline, loader processes", unit="samples/s"),
    "training": Label(group="reads of 20 ms", name="training alone", unit="samples/s"),
    "shm": Label(group="batches of 25 MB", name="a sampler, shared memory", unit="batches/s"),
    "queue": Label(group="batches of 25 MB", name="the queue of a DataLoader", unit="batches/s"),
}


def _plain(script: str, *arguments: str, seconds: float) -> figures.Marks:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / script), "--out", folder, *arguments]
        run_together([(command, environment(OMP_NUM_THREADS="1"))], timeout_s=120.0 + 10 * seconds)
        (marks,) = read_marks(Path(folder), 1).values()
    return marks


def _options(data: str, seconds: float) -> list[str]:
    shape = ["--data", data, "--width", str(WIDTH), "--batch-size", str(BATCH)]
    return [*shape, "--seconds", str(seconds), "--warmup", str(WARMUP)]


def _alone(what: str, data: str, seconds: float) -> float:
    """The processor seconds of a sample."""
    marks = _plain("loop_data.py", *_options(data, seconds), "--plain", what, seconds=seconds)
    return marks[0][1]


def _bound(seconds: float) -> dict[str, float]:
    t, p = _alone("train", "jpeg", seconds), _alone("prepare", "jpeg", seconds)
    return {"bound": min(1 / t, 2 / (t + p))}


def _training(seconds: float) -> dict[str, float]:
    return {"training": 1 / _alone("train", "slow", seconds)}


def _samplers(seconds: float) -> dict[str, float]:
    marks = run_paceline(
        "loop_data.py", *_options("jpeg", seconds), workers=1, slots=1, samplers=2, timeout_s=120.0 + 10 * seconds
    )
    return {"samplers": figures.joint_rate(marks, WARMUP, BATCH)}


def _latency(seconds: float) -> dict[str, float]:
    options = [*_options("slow", seconds), "--loader-workers", str(READERS)]
    marks = run_paceline("loop_data.py", *options, workers=1, slots=1, timeout_s=120.0 + 10 * seconds)
    return {"latency": figures.joint_rate(marks, WARMUP, BATCH)}


def _dataloader(seconds: float) -> dict[str, float]:
    options = [*_options("jpeg", seconds), "--plain", "loader", "--loader-workers", "2"]
    marks = _plain("loop_data.py", *options, seconds=seconds)
    return {"dataloader": figures.joint_rate([marks], WARMUP, BATCH)}


def _large(by: str, name: str) -> dict[str, float]:
    marks = _plain("loop_parcel.py", "--by", by, seconds=4.0)
    return {name: 1 / marks[0][1]}


def contenders(seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {
        "bound": functools.partial(_bound, seconds),
        "samplers": functools.partial(_samplers, seconds),
        "dataloader": functools.partial(_dataloader, seconds),
        "training": functools.partial(_training, seconds),
        "latency": functools.partial(_latency, seconds),
        "shm": functools.partial(_large, "memory", "shm"),
        "queue": functools.partial(_large, "queue", "queue"),
    }


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The ratios, by name; None if a part was not measured."""
    pairs = {
        "samplers_over_bound": ("samplers", "bound"),
        "latency_over_training": ("latency", "training"),
        "samplers_over_dataloader": ("samplers", "dataloader"),
        "shm_over_queue": ("shm", "queue"),
    }
    return {name: figures.ratio(values.get(top, []), values.get(low, [])) for name, (top, low) in pairs.items()}


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("data", __doc__)
    options.add_argument("--seconds", type=float, default=5.0, help="of each measurement, after the warm-up [5]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.seconds = 1.0
    results = Results("data", LABELS, TARGETS, ratios, args.json)
    run_rounds(results, select(contenders(args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
