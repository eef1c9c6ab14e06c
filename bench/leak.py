"""Checks for leaks in a long run: samples resident memory, open files and shared memory of every role.

    python bench/leak.py --steps 20000 --json leak.json

LeNet, lock-step, 2 workers and 1 server, slot batch 16 (small: a leak grows by the step). Growth is the median of the
last third of the samples minus the median of the first third, after the first --settle steps. The exit code is 1 if
something grew.

A role takes one more buffer when it first needs one: for example, a worker that computes two slots of a step while the
server is late. It uses the buffer again, so its memory is at its largest from then on. When that happens is chance. So
if files or shared memory grew, the run goes on, for twice --steps at most, until neither has grown over as many samples
as --steps has. A leak goes on growing.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import figures
import plots
import tables
from harness import ContenderError, machine, parser, run_paceline, write_json
from resident import num_fds, resident, roles, segments

TOLERANCE_MB = 2.0
ROLES = ("coordinator", "server-0", "worker-0", "worker-1")
EXTENSION = 2


@dataclass(slots=True)
class Watch:
    """Takes a sample every `every` steps, from step `settle` on.

    Ends the run as soon as, of the last `window` samples, files and shared memory did not grow.
    """

    every: int
    settle: int
    window: int
    samples: list[dict[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __call__(self, pids: list[int], out: Path) -> None:
        """Take a sample if one is due."""
        step = max((int(file.read_text() or 0) for file in out.glob("*.step")), default=0)
        due = self.settle + len(self.samples) * self.every
        if step < due:
            return
        processes = roles(pids[0])
        try:
            sample: dict[str, float] = {"step": step, "seconds": time.monotonic() - self.began}
            for name in ROLES:
                sample[f"{name} resident_mb"] = resident(processes[name])["rss"] / 1e6
                sample[f"{name} fds"] = num_fds(processes[name])
            sample["shared_mb"] = segments(list(processes.values())) / 1e6
        except (OSError, KeyError):
            return  # a role has just ended: the run is ending
        self.samples.append(sample)
        shown = " ".join(f"{name} {sample[f'{name} resident_mb']:.1f}" for name in ROLES)
        fds = sum(int(sample[f"{name} fds"]) for name in ROLES)
        print(f"step {step:6d}: {shown} MB; {fds} files; shared {sample['shared_mb']:.1f} MB", flush=True)
        if len(self.samples) >= self.window and steady(self.samples, self.window):
            (out / "end").touch()


def judge(samples: list[dict[str, float]], tolerance_mb: float, window: int) -> dict[str, Any]:
    """The growth of every figure, and the names of those that grew too much.

    Files and segments may not grow at all over the last `window` samples, resident memory only a little over all.
    """
    keys = [key for key in samples[0] if key not in ("step", "seconds")]
    growth = {key: figures.growth(samples if _is_resident(key) else samples[-window:], key) for key in keys}
    grew = [key for key, by in growth.items() if by > (tolerance_mb if _is_resident(key) else 0)]
    return {"growth": growth, "grew": grew}


def steady(samples: list[dict[str, float]], window: int) -> bool:
    """Whether files and segments did not grow over the last `window` samples."""
    return not judge(samples, float("inf"), window)["grew"]


def _is_resident(key: str) -> bool:
    return key.endswith("resident_mb")


def main() -> int:
    """Run the job, take samples, print the result."""
    options = parser("leak", __doc__)
    options.add_argument("--steps", type=int, default=20_000)
    options.add_argument("--settle", type=int, default=1_000, help="steps before the first sample [1000]")
    options.add_argument("--every", type=int, default=1_000, help="steps between samples [1000]")
    options.add_argument(
        "--tolerance-mb", type=float, default=TOLERANCE_MB, help="how much the resident memory of a role may grow [2]"
    )
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.steps, args.settle, args.every = 2_000, 500, 150
    window = max(3, (args.steps - args.settle) // args.every)
    watch = Watch(args.every, args.settle, window)
    limit = EXTENSION * args.steps
    failures = []
    try:
        run_paceline(
            "loop_paceline.py", "--batch-size", "16", "--progress", "10", "--steps", str(limit),
            workers=2, slots=2, timeout_s=120 + 0.1 * limit, meanwhile=watch, leaves_marks=False,
        )  # fmt: skip
    except ContenderError as error:
        failures.append({"contender": "the run", "round": 1, "error": str(error)})
    document: dict[str, Any] = {
        "bench": "leak", "steps": args.steps, "settle": args.settle, "window": window,
        "tolerance_mb": args.tolerance_mb, "machine": machine(),
        "samples": watch.samples, "growth": {}, "grew": [], "failures": failures,
    }  # fmt: skip
    try:
        document |= judge(watch.samples, args.tolerance_mb, window)
    except (IndexError, figures.TooShortError):
        failures.append(
            {"contender": "the samples", "round": 1, "error": f"only {len(watch.samples)} samples: raise --steps"}
        )
    if args.json is not None:
        write_json(args.json, document)
    print(tables.leak_section(document))
    if args.plot is not None and watch.samples:
        plots.draw_lines(_panels(watch.samples), "step", args.plot)
    return 1 if failures or document["grew"] else 0


def _panels(samples: list[dict[str, float]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    def line(key: str) -> list[tuple[float, float]]:
        return [(sample["step"], sample[key]) for sample in samples]

    return {
        "resident MB": {name: line(f"{name} resident_mb") for name in ROLES},
        "open files": {name: line(f"{name} fds") for name in ROLES},
        "shared memory, MB": {"all roles": line("shared_mb")},
    }


if __name__ == "__main__":
    sys.exit(main())
