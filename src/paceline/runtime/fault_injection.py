"""Wraps a worker's port with planned faults: for tests and chaos campaigns, by PACELINE_FAULTS."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from paceline.transport.base import Port

_COUNTS = "counts"

# Whatever a worker says is said again until it is answered, so any of it may be lost.
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


def wrap(port: Port, plan: str, name: str) -> Port:
    """`plan` is the JSON of a `FaultPlan`; each start of each role gets its own seed out of it.

    With a folder as its "counts", a line for each fault that fired goes to a file in there, at once: a role may be
    killed at any moment.
    """
    from paceline.transport.faulty import FaultPlan, FaultyPort

    fields = json.loads(plan)
    counts = fields.pop(_COUNTS, None)
    if counts is None:
        return FaultyPort(port, FaultPlan.from_dict({**fields, "seed": f"{fields.get('seed', 0)} {name}"}))
    folder = Path(counts)
    folder.mkdir(parents=True, exist_ok=True)
    start = len(list(folder.glob(f"{name}.*")))
    file = folder / f"{name}.{os.getpid()}"
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
