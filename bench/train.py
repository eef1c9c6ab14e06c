"""Samples per second of a training loop on Paceline beside its peers, alternating in one run.

    python bench/train.py --rounds 5 --json train.json

Contenders, each with one thread a process and a slot batch of 64: `bsp` and `asp` (2 workers, 1 server), `one` (1
worker, 1 server), DDP on Gloo with 2 processes, two independent processes, one plain process. The machine is noisy:
only ratios between medians of the same run mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS = {"lenet": 400, "mlp": 24}


def _plain(model: str, steps: int, processes: int, *, ddp: bool) -> float:
    """Total samples/s of `processes` plain loops."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(HERE / "loop_plain.py"), "--model", model, "--steps", str(steps)]
    command += ["--ddp"] if ddp else ["--start-at", str(time.time() + 8.0)]
    started = [
        subprocess.Popen(
            command,
            env={**env, "RANK": str(rank), "WORLD_SIZE": str(processes)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    rates = [json.loads(p.communicate(timeout=600)[0].splitlines()[-1])["samples_per_s"] for p in started]
    return float(sum(rates))


def _paceline(model: str, steps: int, workers: int, mode: str) -> float:
    """Samples/s from the first commit to the last, as the summary says."""
    # With one slot a step (asp) a step is one batch, in lock-step one a worker: the same samples for each.
    slots = workers if mode == "bsp" else 1
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "summary.json"
        command = [
            sys.executable, "-m", "paceline.cli.main", "run", "-w", str(workers), "-s", "1", "--mode", mode,
            "--slots", str(slots), "--dir", f"{folder}/run", "--summary", str(out), str(HERE / "loop_paceline.py"),
            "--model", model, "--steps", str(steps * workers // slots),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return float(json.loads(out.read_text())["samples_per_s"])


def contenders(model: str) -> dict[str, Any]:
    """What takes part, by name."""
    steps = STEPS[model]
    return {
        "bsp": lambda: _paceline(model, steps, 2, "bsp"),
        "ddp": lambda: _plain(model, steps, 2, ddp=True),
        "asp": lambda: _paceline(model, steps, 2, "asp"),
        "independent": lambda: _plain(model, steps, 2, ddp=False),
        "one": lambda: _paceline(model, steps, 1, "bsp"),
        "plain": lambda: _plain(model, steps, 1, ddp=False),
    }


RATIOS = {
    "bsp_over_ddp": ("bsp", "ddp"),
    "bsp_over_independent": ("bsp", "independent"),
    "asp_over_independent": ("asp", "independent"),
    "one_over_plain": ("one", "plain"),
    "bsp_over_plain": ("bsp", "plain"),
}


def main() -> None:
    """Run the rounds, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["lenet"], choices=list(STEPS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"rounds": args.rounds, "samples_per_s": {}, "ratios": {}}
    for model in args.models:
        taken = contenders(model)
        rates: dict[str, list[float]] = {name: [] for name in taken}
        for number in range(args.rounds):
            for name, measure in taken.items():
                rates[name].append(measure())
                print(f"{model} round {number + 1}: {name:12s} {rates[name][-1]:10,.0f} samples/s", flush=True)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        result["samples_per_s"][model] = {
            name: {"median": medians[name], "min": min(values), "max": max(values)} for name, values in rates.items()
        }
        for name, (top, bottom) in RATIOS.items():
            result["ratios"][f"{model}_{name}"] = medians[top] / medians[bottom]
        print(f"\n{model}: median samples/s (min to max)")
        for name, values in rates.items():
            print(f"  {name:12s} {medians[name]:10,.0f}  ({min(values):,.0f} to {max(values):,.0f})")
    print("\nratios of medians")
    for name, value in result["ratios"].items():
        print(f"  {name:28s} {value:.2f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
