"""Resident bytes by role over parameter bytes, and a worker beside a plain PyTorch process with the same loop.

    python bench/memory.py --rounds 5 --json memory.json

The MLP 784-4096-4096-10 (20 million parameters, 80 MB) with SGD and momentum, slot batch 64, lock-step, 2 workers and 1
server with default settings. A figure is the largest of the samples taken during training, after the warm-up.
Private and file pages count in full. Shared memory counts in the process that created it, so no page counts twice in a
run (bench/resident.py). A server holds the difference to the server of a run that trains 10 numbers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import figures
import plots
import tables
from harness import ContenderError, Label, Results, parser, run_paceline, run_plain, run_rounds, select
from resident import resident, roles

PARAMETERS = 784 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10
WEIGHTS_MB = PARAMETERS * 4 / 1e6
WARMUP = 5
TARGETS = {"server_over_weights": "≤ 5", "worker_over_plain": "≤ 1.35"}
GROUPS = {
    "own": "shared memory in the process that made it",
    "pss": "shared memory divided among its readers (Pss)",
    "rss": "shared memory in full in each (Rss)",
}
NAMES = {"server": "server", "idle": "server without a model", "worker": "worker", "plain": "plain PyTorch process"}


class Peaks:
    """The largest sample of each process, in MB."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}

    def sample(self, name: str, pid: int) -> None:
        """Take a sample of a process, if it still runs."""
        try:
            now = resident(pid)
        except OSError:
            return
        before = self._seen.get(name, now)
        self._seen[name] = {way: max(nbytes, before[way]) for way, nbytes in now.items()}

    def figures(self, prefix: str, key: str) -> dict[str, float]:
        """The largest sample of the processes whose name begins with `prefix`, as figures of `key`."""
        found = [seen for name, seen in self._seen.items() if name.startswith(prefix)]
        if not found:
            raise ContenderError(f"no sample of {prefix!r}: the run was too short")
        return {f"{key}_{way}": max(seen[way] for seen in found) / 1e6 for way in GROUPS}


def _options(model: str, seconds: float) -> list[str]:
    return ["--model", model, "--batch-size", "64", "--warmup", str(WARMUP), "--seconds", str(seconds)]


def _paceline(model: str, seconds: float) -> Peaks:
    peaks = Peaks()

    def look(pids: list[int], out: Path) -> None:
        if len(list(out.glob("*.warm"))) == 2 and not list(out.glob("*.marks.json")):
            for name, pid in roles(pids[0]).items():
                peaks.sample(name, pid)

    run_paceline(
        "loop_paceline.py", *_options(model, seconds), workers=2, slots=2, timeout_s=180 + 10 * seconds, meanwhile=look
    )  # fmt: skip
    return peaks


def _run(seconds: float) -> dict[str, float]:
    peaks = _paceline("mlp", seconds)
    return peaks.figures("server", "server") | peaks.figures("worker", "worker")


def _idle(seconds: float) -> dict[str, float]:
    return _paceline("ten", seconds).figures("server", "idle")


def _plain(seconds: float) -> dict[str, float]:
    peaks = Peaks()

    def look(pids: list[int], out: Path) -> None:
        if list(out.glob("*.warm")) and not list(out.glob("*.marks.json")):
            peaks.sample("plain", pids[0])

    run_plain(
        "loop_plain.py", *_options("mlp", seconds), processes=1, timeout_s=180 + 10 * seconds, meanwhile=look
    )  # fmt: skip
    return peaks.figures("plain", "plain")


def contenders(seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {
        "run": functools.partial(_run, seconds),
        "plain": functools.partial(_plain, seconds),
        "idle": functools.partial(_idle, seconds / 2),
    }


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The ratios, by name; None if a part was not measured."""
    holds = figures.difference(values.get("server_own", []), values.get("idle_own", []))
    return {
        "server_over_weights": None if holds is None else holds / WEIGHTS_MB,
        "worker_over_plain": figures.ratio(values.get("worker_own", []), values.get("plain_own", [])),
    }


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("memory", __doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after the warm-up [3]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.seconds = 1.0
    labels = {
        f"{key}_{way}": Label(group=group, name=name, unit="MB")
        for way, group in GROUPS.items()
        for key, name in NAMES.items()
    }
    results = Results("memory", labels, TARGETS, ratios, args.json)
    results.notes.append(
        f"The weights are {WEIGHTS_MB:.1f} MB. Private and file pages count in full everywhere. Both ratios use the "
        "first table, in which each page of shared memory counts once, in the process that created it. In the last "
        "table a page counts in every process that maps it, so its sum over the roles counts pages twice."
    )
    run_rounds(results, select(contenders(args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
