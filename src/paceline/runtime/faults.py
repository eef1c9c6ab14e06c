"""Wraps a role's port with planned faults: for tests and chaos campaigns, by PACELINE_FAULTS."""

from __future__ import annotations

import json

from paceline.transport.base import Port


def wrap(port: Port, plan: str, name: str) -> Port:
    """`plan` is the JSON of a `FaultPlan`; each role gets its own seed out of it."""
    from paceline.transport.faulty import FaultPlan, FaultyPort

    fields = json.loads(plan)
    fields["seed"] = f"{fields.get('seed', 0)} {name}"
    return FaultyPort(port, FaultPlan(**fields))
