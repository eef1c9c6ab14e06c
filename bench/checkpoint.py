"""Samples per second with a checkpoint every 5 s beside training without any, alternating in one run.

    python bench/checkpoint.py --rounds 10 --json checkpoint.json

A 20-million-parameter MLP (SGD with momentum: 160 MB a checkpoint), lock-step, 2 workers and 1 server with one thread
each. A round with fewer than two checkpoints fails: raise --steps. The machine is noisy: compare only medians of the
same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EVERY = {"none": "0", "every 5 s": "5s"}


def _run(steps: int, every: str) -> dict[str, Any]:
    """Run one training; returns its summary with the number of checkpoints that were complete before its end."""
    with tempfile.TemporaryDirectory() as folder:
        run, out = Path(folder) / "run", Path(folder) / "summary.json"
        command = [
            sys.executable, "-m", "paceline.cli.main", "run", "-w", "2", "-s", "1", "--mode", "bsp", "--slots", "2",
            "--checkpoint-every", every, "--keep", "99", "--dir", str(run), "--summary", str(out),
            str(HERE / "loop_paceline.py"), "--model", "mlp", "--steps", str(steps),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        summary: dict[str, Any] = json.loads(out.read_text())
        if summary["warning"]:
            raise SystemExit(summary["warning"])
        # The last checkpoint is written after training has ended, so it does not count.
        complete = sorted(path.parent.name for path in run.glob("checkpoints/*/COMPLETE"))
        summary["checkpoints"] = len([name for name in complete if name != summary["checkpoint"]])
        return summary


def main() -> None:
    """Run the rounds, print the medians and their ratio, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in EVERY}
    counts: list[int] = []
    for number in range(args.rounds):
        order = list(EVERY.items())
        for name, every in order if number % 2 == 0 else reversed(order):
            summary = _run(args.steps, every)
            rates[name].append(summary["samples_per_s"])
            made = summary["checkpoints"]
            print(
                f"round {number + 1}: {name:10s} {rates[name][-1]:8,.1f} samples/s "
                f"({summary['seconds']:.1f} s, {made} checkpoints)",
                flush=True,
            )
            if name != "none":
                counts.append(made)
                if made < 2:
                    raise SystemExit(f"only {made} checkpoints in {summary['seconds']:.1f} s: raise --steps")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["every 5 s"] / medians["none"]
    print("\nmedian samples/s (min to max)")
    for name, values in rates.items():
        print(f"  {name:10s} {medians[name]:8,.1f}  ({min(values):,.1f} to {max(values):,.1f})")
    print(f"ratio {ratio:.3f}, with {min(counts)} to {max(counts)} checkpoints a round")
    if args.json:
        result = {
            "rounds": args.rounds,
            "steps": args.steps,
            "samples_per_s": rates,
            "medians": medians,
            "checkpoints": counts,
            "ratio": ratio,
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
