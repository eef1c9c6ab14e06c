"""Adds planned faults to a worker's port, for tests and chaos campaigns. PACELINE_FAULTS has the plan."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from paceline.transport.base import Port

_COUNTS = "counts"

# A worker repeats every request until it is answered, so any of these may be lost.
_SENT = (
    "BeginPhase", "Claim", "Declare", "GiveBack", "PlacementRequest", "Prepare", "Pull", "Push", "Register", "Turn",
)  # fmt: skip
_RECEIVED = (
    "Claimed", "EvalGrant", "EvalOver", "Grant", "Ok", "PhaseBegun", "PhaseOver", "Prepared", "PullReply", "PushAck",
    "Refused", "Welcome",
)  # fmt: skip


def plan_for_workers(seed: int, drop: float, duplicate: float, delay: tuple[float, float], counts: Path) -> str:
    """Make the value of PACELINE_FAULTS: the probabilities of faults for every kind of message of a worker.

    `delay` is a probability and a delay in seconds. Each fault that happens is written to a file in folder `counts`.
    """
    plan: dict[str, object] = {"seed": seed, _COUNTS: str(counts.resolve())}
    for prefix, names in (("", _SENT), ("recv_", _RECEIVED)):
        plan[f"{prefix}drop"] = dict.fromkeys(names, drop)
        plan[f"{prefix}duplicate"] = dict.fromkeys(names, duplicate)
        plan[f"{prefix}delay"] = dict.fromkeys(names, delay)
    return json.dumps(plan)


def wrap(port: Port, plan: str, name: str, start: int) -> Port:
    """Return `port` with the faults of `plan`, the JSON of a `FaultPlan`. Each start of a process has its own seed.

    If the plan names a folder "counts", each fault adds a line to a file in that folder, at once: the process may be
    killed at any moment.
    """
    from paceline.transport.faulty import FaultPlan, FaultyPort

    fields = json.loads(plan)
    counts = fields.pop(_COUNTS, None)
    if counts is None:
        return FaultyPort(port, FaultPlan.from_dict({**fields, "seed": f"{fields.get('seed', 0)} {name}"}))
    folder = Path(counts)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.{start}"
    file.touch()

    def fired(key: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{key}\n")

    return FaultyPort(port, FaultPlan.from_dict({**fields, "seed": f"{fields.get('seed', 0)} {name} {start}"}), fired)


def read_counts(folder: Path) -> Counter[str]:
    """Count the faults that happened in all processes, by kind: drop, duplicate, delay."""
    found: Counter[str] = Counter()
    for file in folder.glob("*") if folder.is_dir() else ():
        for line in file.read_text().splitlines():
            found[line.partition(":")[0].removeprefix("recv_")] += 1
    return found
