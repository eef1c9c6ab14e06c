"""Says who waits for whom, and for what, when a run makes no progress. Pure: it reads the tables."""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.types import INIT_STEP, NodeId

STALL_S = 5.0
"""Seconds without a commit after which a run says what it waits for, unless its slots usually take longer."""

_USUAL = 3.0  # a slot is late if it takes so many times as long as usual at its worker


class Stall(NamedTuple):
    """What a run waits for, in words, and the process that is late: "" if there is none to ask."""

    text: str
    process: str = ""


def stall_of(tables: Tables, stall_s: float) -> Stall | None:
    """What the job waits for, if nothing was committed for `stall_s`, which is too long; None if it is not."""
    step = tables.log.watermark.low if tables.log.version >= 0 else INIT_STEP
    lease = tables.leases.live.oldest_open(step)
    usual = 0.0 if lease is None else tables.speeds.seconds_of(lease.worker) or 0.0
    if stall_s < max(STALL_S, _USUAL * usual):
        return None
    if tables.log.version >= 0 and tables.phases.open is None and not tables.rounds.running:
        return None  # between two loops the scripts do what they like
    name = "the first weights" if step == INIT_STEP else f"step {step}"
    if tables.placed.placement is None:
        return Stall(f"{name} waits for servers: the blocks of the model have no place, for {stall_s:.1f} s")
    if tables.rounds.running and (held := tables.rounds.held()):
        version = min(round_.version for round_ in tables.rounds.running.values())
        worker, _ = held[0]
        of = _process(tables, worker)
        return Stall(f"{name} waits for the validation of version {version} on {of}, for {stall_s:.1f} s", _name(of))
    if lease is not None:
        return _of_lease(tables, lease, name)
    return _of_servers(tables, step, name, stall_s)


def _of_lease(tables: Tables, lease: Lease, name: str) -> Stall:
    of = _process(tables, lease.worker)
    waited_s = tables.clock.now - lease.at
    cuts = _cuts(tables)
    return Stall(f"{name} waits for slot {lease.slot.slot} on {of}, for {waited_s:.1f} s{cuts}", _name(of))


def _of_servers(tables: Tables, step: int, name: str, stall_s: float) -> Stall:
    late = tables.gate.unready(step, sorted(tables.placed.voters))
    if step in tables.gate and late:
        servers = ", ".join(_process(tables, server) for server in late)
        what = "not ready with the sum of its slots"
        return Stall(f"{name} waits for {servers}: {what}, for {stall_s:.1f} s{_cuts(tables)}")
    if not tables.members.active_workers():
        return Stall(f"{name} waits for a worker: none takes part, for {stall_s:.1f} s")
    return Stall(f"{name} waits for a worker to take a slot, for {stall_s:.1f} s{_cuts(tables)}")


def _cuts(tables: Tables) -> str:
    """Who cannot reach whom, in words."""
    pairs = sorted(tables.reach.cuts(tables.clock.now))[:3]
    names = [(_name(_process(tables, node)), _name(_process(tables, peer))) for node, peer in pairs]
    return "".join(f"; {node} cannot reach {peer}" for node, peer in names)


def _process(tables: Tables, node: NodeId) -> str:
    """A process with its host, in words."""
    member = tables.members.members.get(node)
    return node if member is None else f"{member.name}, host {member.host}"


def _name(process: str) -> str:
    return process.partition(",")[0]
