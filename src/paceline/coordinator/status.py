"""What people see of a run: its state now, and its summary at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline.coordinator.json_numbers import plain, shown
from paceline.coordinator.placement_report import drained, placed
from paceline.coordinator.timeline import Course
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.coordinator.leases import Lease
from paceline.core.coordinator.reservations import Reservation
from paceline.types import UNLIMITED, name_of

_LATE_S = 5.0  # after which the progress line names whom a step waits for


def headline(core: CoordinatorCore, run: str) -> str | None:
    """The first line of output: what will be computed. None until a worker has called `batches`."""
    if core.job is None or not core.schedule.segments:
        return None
    segment = core.schedule.segments[0]
    how = "" if core.job.slots or core.phases.phases[0].spec.slots else " (slots not given)"
    workers = core.spec.workers
    return (
        f"{segment.mode} · {segment.slots} slot{'s' * (segment.slots != 1)} × {segment.batch_size} = "
        f"batch {segment.slots * segment.batch_size}{how} · {workers} worker{'s' * (workers != 1)} · "
        f"seed {core.job.seed} · {run or 'embedded'}"
    )


def advice(core: CoordinatorCore) -> str | None:
    """A warning when some workers can have nothing to do."""
    if not core.schedule.segments:
        return None
    segment = core.schedule.segments[0]
    if segment.window == UNLIMITED:
        return None
    useful = segment.slots * (segment.window + 1)
    if core.spec.workers <= useful:
        return None
    return (
        f"{core.spec.workers} workers, but only {useful} slot{'s' * (useful != 1)} can be computed at once "
        f"({segment.slots} slots × (window {segment.window} + 1)): raise slots, or use fewer workers"
    )


def describe(status: Mapping[str, Any]) -> str:
    """One line: step, epoch, speed, loss, last validation, workers alive, staleness, and what is wrong."""
    warning = [f"warning: {status['warning']}"] if status.get("warning") else []
    alive = status.get("workers_alive", 0)
    workers = f"{alive} worker{'s' * (alive != 1)}"
    if status.get("rewinding"):
        return " · ".join([f"rewinding to version {status['version']}: waits for a server", workers, *warning])
    if status.get("step") is None or status.get("end_step") is None:
        return " · ".join([str(status.get("state", "starting")), workers, *warning])
    parts = [
        f"step {status['step']}/{status['end_step']}",
        f"epoch {status['epoch']}/{status['end_epoch']}",
        f"{status['samples_per_s']:,.0f} samples/s",
    ]
    parts += [f"{name} {shown(value)}" for name, value in status.get("logs", {}).items()]
    parts += [f"{name} {shown(value)}" for name, value in status.get("metrics", {}).items()]
    slowest = status.get("slowest")
    if slowest and slowest["seconds"] >= _LATE_S:
        parts.append("waits for slot {slot} of step {step}, {seconds:.0f} s at {worker}".format(**slowest))
    if status.get("validating"):
        parts.append(f"validating version {status['validating'][0]['version']}")
    parts.append(workers)
    lacking = (status.get("placement") or {}).get("short", 0)
    if lacking:
        parts.append(f"{lacking} block{'s' * (lacking != 1)} short of a copy")
    if status.get("draining"):
        parts.append(f"{', '.join(status['draining'])} being emptied")
    parts += status.get("cuts", ())[:3]
    if status.get("mode") != "bsp":
        parts.append(f"staleness ≤ {status['max_staleness']}")
    return " · ".join(parts + warning)


def _rate(core: CoordinatorCore, course: Course, now: float) -> float:
    """Samples per second: of late while the run goes on, else from version 0 to the last commit."""
    if core.phases.open is not None and (rate := course.rate(now)) is not None:
        return rate
    return core.totals.samples / course.seconds if course.seconds else 0.0


def _slowest(core: CoordinatorCore) -> dict[str, object] | None:
    """What the oldest uncommitted step has waited for longest: a lease, or a slot that is left to a worker."""
    found: Lease | Reservation | None = core.leases.oldest_open(core.watermark.low)
    if found is None:
        found = min(core.leases.reserved.all(), key=lambda left: left.at, default=None)
    if found is None:
        return None
    member = core.members.members.get(found.worker)
    worker = member.name if member is not None else found.worker
    return {"step": found.slot.step, "slot": found.slot.slot, "worker": worker, "seconds": core.now - found.at}


def unfinished(core: CoordinatorCore, course: Course) -> bool:
    """Whether there is work to do: steps of a phase that has begun, or what a rewind has undone."""
    if core.phases.open is not None and core.watermark.low < core.phases.open.end:
        return True
    return core.state != "finished" and core.version < course.reached


def _checkpoint(core: CoordinatorCore, course: Course, now: float) -> dict[str, object] | None:
    if core.checkpoint is None:
        return None
    folder, at = core.checkpoint.folder, core.checkpoint.position
    age_s = None if course.checkpoint_at is None else now - course.checkpoint_at
    return {"folder": folder, "version": at.version, "step": at.watermark, "age_s": age_s}


def _processes(core: CoordinatorCore) -> list[dict[str, object]]:
    """Who takes part now. A server that a new coordinator has not heard yet has no pid, and is left out."""
    return [
        {"name": m.name, "role": m.role, "pid": m.pid, "node": m.node}
        for m in core.members.members.values()
        if m.pid and not m.left
    ]


def status_of(core: CoordinatorCore, course: Course, now: float, run: str) -> dict[str, object]:
    """The state of a run now."""
    phase = core.phases.open or (core.phases.phases[-1] if core.phases.phases else None)
    segment = core.schedule.segment(core.watermark.low) if core.schedule.segments else None
    step = core.watermark.low
    epoch = 0
    if segment is not None and step < segment.end_step:
        epoch = core.schedule.place(step).epoch
    elif segment is not None:
        epoch = segment.end_epoch
    workers = [m for m in core.members.by_role("worker") if not m.left]
    draining = core.draining
    return {
        "run": run,
        "state": core.state,
        "headline": headline(core, run),
        "advice": advice(core),
        "mode": segment.mode if segment else None,
        "step": step,
        "end_step": phase.end if phase else None,
        "version": core.version,
        "epoch": epoch,
        "end_epoch": segment.end_epoch if segment else None,
        "samples": round(core.totals.samples),
        "samples_per_s": _rate(core, course, now),
        "slowest": _slowest(core),
        "unfinished": unfinished(core, course),
        "logs": plain(core.logs),
        "metrics": plain(core.evaluations.metrics()),
        "validating": [{"version": r.version, "name": r.validator.name} for r in core.evaluations.rounds.values()],
        "workers_alive": len(workers),
        "workers": [m.name for m in workers],
        "servers": [m.name for m in core.members.by_role("server")],
        "wanted_workers": core.wanted_workers,
        "wanted_servers": core.wanted_servers,
        "replicas": core.spec.replicas,
        "placement": placed(core.placement, core.spec.replicas),
        "draining": sorted(map(name_of, draining)),
        "drained": drained(core.placement, draining),
        "failovers": core.failovers,
        "failover_s": round(course.failover_s, 3),
        "cuts": [f"{name_of(node)} cannot reach {name_of(peer)}" for node, peer in core.cuts],
        "changes": [
            {"number": c.number, "kind": c.kind, "why": c.why, "age_s": round(core.now - c.at, 3)}
            for c in course.changes
        ],
        "processes": _processes(core),
        "pid": os.getpid(),
        "max_staleness": core.totals.max_staleness,
        "lost_workers": core.totals.lost_workers,
        "wasted_slots": core.totals.wasted_slots,
        "generation": core.generation,
        "incarnation": core.incarnation,
        "rewinds": core.rewinds,
        "recomputed_steps": core.recomputed,
        "rewinding": core.rewinding,
        "checkpoint": _checkpoint(core, course, now),
        "warning": core.warning,
        "failure": None
        if core.failure is None
        else {"kind": core.failure.kind, "reason": core.failure.reason, "trace": core.failure.trace},
    }


def summary_of(core: CoordinatorCore, course: Course, run: str, digest: str | None) -> dict[str, object]:
    """The summary of a run that has ended."""
    seconds = course.seconds
    segment = core.schedule.segments[-1] if core.schedule.segments else None
    totals = core.totals
    return {
        "run": run,
        "state": "failed" if core.failure else "unfinished" if unfinished(core, course) else "done",
        "stopped": core.stop_reason,
        "steps": max(0, core.version),
        "samples": round(totals.samples),
        "seconds": seconds,
        "samples_per_s": totals.samples / seconds if seconds else 0.0,
        "mode": segment.mode if segment else None,
        "slots": segment.slots if segment else None,
        "slot_batch": segment.batch_size if segment else None,
        "workers": core.wanted_workers,
        "servers": core.wanted_servers,
        "replicas": core.spec.replicas,
        "seed": core.job.seed if core.job else None,
        "threads": core.job.threads if core.job else None,
        "metrics": plain({**core.logs, **core.evaluations.metrics()}),
        "max_staleness": totals.max_staleness,
        "max_lag": totals.max_lag,
        "skipped_slots": totals.skipped_slots,
        "wasted_slots": totals.wasted_slots,
        "lost_workers": totals.lost_workers,
        "generations": core.generation,
        "incarnation": core.incarnation,
        "rewinds": core.rewinds,
        "recomputed_steps": core.recomputed,
        "failovers": core.failovers,
        "failover_s": round(course.failover_s, 3),
        "checkpoint": core.checkpoint.folder if core.checkpoint is not None else None,
        "warning": core.warning,
        "digest": digest,
    }
