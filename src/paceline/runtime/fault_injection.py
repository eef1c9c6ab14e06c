"""Wraps a worker's port with planned faults: for tests and chaos campaigns, by PACELINE_FAULTS."""

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
    """The value of PACELINE_FAULTS: every message of a worker fails at these odds; what fired is counted in `counts`.

    `delay` is a probability and the seconds by which a message is late.
    """
    plan: dict[str, object] = {"seed": seed, _COUNTS: str(counts.resolve())}
    for prefix, names in (("", _SENT), ("recv_", _RECEIVED)):
        plan[f"{prefix}drop"] = dict.fromkeys(names, drop)
        plan[f"{prefix}duplicate"] = dict.fromkeys(names, duplicate)
        plan[f"{prefix}delay"] = dict.fromkeys(names, delay)
    return json.dumps(plan)


def wrap(port: Port, plan: str, name: str, start: int) -> Port:
    """`port` with the faults of `plan`, the JSON of a `FaultPlan`; each start of a name has a seed of its own.

    If the plan has a folder "counts", each fault that fires adds a line to a file in it, at once: the process may be
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
    """How often each kind of fault fired in all roles: drop, duplicate, delay."""
    found: Counter[str] = Counter()
    for file in folder.glob("*") if folder.is_dir() else ():
        for line in file.read_text().splitlines():
            found[line.partition(":")[0].removeprefix("recv_")] += 1
    return found
