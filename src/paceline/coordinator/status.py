"""Builds a run's `Status` and `RunSummary` from the coordinator's core, and the progress line from a `Status`."""

from __future__ import annotations

import os
from typing import Any

from paceline.coordinator.best_report import best_of, stop_reason
from paceline.coordinator.data_report import in_progress, of_data, of_summary, sampler_processes
from paceline.coordinator.json_numbers import plain, shown
from paceline.coordinator.placement_report import drained, drained_hosts, placed
from paceline.coordinator.plan_text import plan_lines
from paceline.coordinator.timeline import Timeline
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.coordinator.holders import holders
from paceline.core.coordinator.stall import stall_of
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.coordinator.tables.phases import Phase
from paceline.core.coordinator.tables.reservations import Reservation
from paceline.core.sampling import epochs_begun
from paceline.messages.status import (
    ChangeStatus,
    CheckpointStatus,
    FailureStatus,
    ProcessStatus,
    RunSummary,
    SlowestSlot,
    SpeedStatus,
    Status,
    ValidationStatus,
)
from paceline.types import UNLIMITED, NodeId, Segment, name_of, pid_of

_LATE_S = 5.0  # seconds: the progress line names a slot, and its worker, that takes this long


def headline(core: CoordinatorCore, run: str) -> str | None:
    """The first line of output: mode, batch, workers, seed and run. None until a worker has called `batches`."""
    if core.tables.identity.job is None or not core.schedule.segments:
        return None
    segment = core.schedule.segments[0]
    how = "" if core.tables.identity.job.slots or core.tables.phases.phases[0].spec.slots else " (slots not given)"
    workers = core.spec.workers
    return (
        f"{segment.mode} · {segment.slots} slot{'s' * (segment.slots != 1)} × {segment.batch_size} = "
        f"batch {segment.slots * segment.batch_size}{how} · {workers} worker{'s' * (workers != 1)} · "
        f"seed {core.tables.identity.job.seed} · {run or 'embedded'}"
    )


def advice(core: CoordinatorCore) -> str | None:
    """A warning if there are more workers than slots that can be computed at once, else None."""
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


def _on_hosts(status: Status) -> str:
    """How many hosts carry roles, for a run with several of them; "" for others."""
    hosts = {process.host for process in status.processes if process.host}
    return f" on {len(hosts)} hosts" if len(hosts) > 1 else ""


def describe(status: Status) -> str:
    """The progress line: step, epoch, speed, loss, last validation, workers alive, staleness and warnings."""
    warning = [f"warning: {status.warning}"] if status.warning else []
    moving = [status.moving] if status.moving else []
    workers = f"{status.workers_alive} worker{'s' * (status.workers_alive != 1)}{_on_hosts(status)}"
    if status.rewinding:
        return " · ".join([f"rewinding to version {status.version}: waits for a server", workers, *moving, *warning])
    if status.step is None or status.end_step is None:
        return " · ".join([status.state, workers, *moving, *warning])
    parts = [
        f"step {status.step}/{status.end_step}",
        f"epoch {status.epoch}/{status.end_epoch}",
        f"{status.samples_per_s:,.0f} samples/s",
    ]
    parts += [f"{name} {shown(value)}" for name, value in (*status.logs.items(), *status.metrics.items())]
    if status.stall:
        parts.append(status.stall)
    elif (slot := status.slowest) is not None and slot.seconds >= _LATE_S:
        parts.append(f"waits for slot {slot.slot} of step {slot.step}, {slot.seconds:.0f} s at {slot.worker}")
    if status.validating:
        parts.append(f"validating version {status.validating[0].version}")
    if status.workers_alive or status.unfinished:
        parts.append(workers)
    if short := status.placement.short:
        parts.append(f"{short} block{'s' * (short != 1)} short of a copy")
    if status.draining:
        parts.append(f"{', '.join(status.draining)} being emptied")
    if waits := [host for host in status.draining_hosts if host not in status.drained_hosts]:
        parts.append(f"host {', '.join(waits)} being emptied")
    if status.bad_records:
        parts.append(f"{status.bad_records} bad record{'s' * (status.bad_records != 1)} left out")
    parts += [*in_progress(status), *status.cuts[:3], *moving]
    if status.mode != "bsp":
        parts.append(f"staleness ≤ {status.max_staleness}")
    return " · ".join(parts + warning)


def _rate(core: CoordinatorCore, timeline: Timeline, now: float) -> float:
    """Samples per second: over the last seconds while a phase is open, else over the whole run."""
    if core.tables.phases.open is not None and (rate := timeline.rate(now)) is not None:
        return rate
    return core.totals.samples / timeline.seconds if timeline.seconds else 0.0


def _slowest(core: CoordinatorCore) -> SlowestSlot | None:
    """The slot for which the oldest uncommitted step has waited longest: leased, or reserved for a worker."""
    found: Lease | Reservation | None = core.tables.leases.live.oldest_open(core.watermark.low)
    if found is None:
        found = min(core.tables.leases.reserved.all(), key=lambda left: left.at, default=None)
    if found is None:
        return None
    member = core.tables.members.members.get(found.worker)
    worker = member.name if member is not None else found.worker
    return SlowestSlot(found.slot.step, found.slot.slot, worker, core.tables.clock.now - found.at)


def unfinished(core: CoordinatorCore, timeline: Timeline) -> bool:
    """Whether there is work to do: steps of an open phase, or steps that a rewind has undone."""
    if core.tables.phases.open is not None and core.watermark.low < core.tables.phases.open.end:
        return True
    return core.state != "finished" and core.version < timeline.reached


def _checkpoint(core: CoordinatorCore, timeline: Timeline, now: float) -> CheckpointStatus | None:
    if core.machines.checkpoints.newest is None:
        return None
    folder, at = core.machines.checkpoints.newest.folder, core.machines.checkpoints.newest.position
    age_s = None if timeline.checkpoint_at is None else now - timeline.checkpoint_at
    return CheckpointStatus(folder, at.version, at.watermark, age_s)


def _processes(core: CoordinatorCore) -> tuple[ProcessStatus, ...]:
    """The processes that take part. A server that this coordinator knows only from the log is left out."""
    holders = set() if core.placement is None else set(core.placement.holders)
    found = []
    for m in core.tables.members.members.values():
        if m.start and not m.left:
            works = m.node in holders or core.tables.speeds.knows(m.node)
            script = _script(core, m.node) if m.role == "worker" else ""
            found.append(ProcessStatus(m.name, m.role, pid_of(m.node), m.node, m.start, works, script, m.host))
    return (*found, *sampler_processes(core))


def _of_dials(core: CoordinatorCore, timeline: Timeline, now: float, segment: Segment | None) -> dict[str, Any]:
    """The fields of the status about what changes while the job runs, by which speeds, and about data."""
    mode, slots = (segment.mode, segment.slots) if segment else (None, None)
    decided: dict[str, Any] = {"best": best_of(core), "stop_reason": core.machines.segments.stop_reason}
    stall = None if core.state != "running" else stall_of(core.tables, timeline.quiet_s(now))
    decided |= (
        {"stall": "", "late_process": ""} if stall is None else {"stall": stall.text, "late_process": stall.process}
    )
    return {
        "mode": mode,
        "slots": slots,
        "plan": plan_lines(core),
        "speeds": _speeds(core),
        "reducer": _reducer(core),
        "moving": core.machines.rebalance.moves.awaited,
        **decided,
        **of_data(core),
    }


def _reducer(core: CoordinatorCore) -> str:
    """Where the slots of a step meet now: "servers" or "collective"; "" before the blocks are placed."""
    if core.placement is None:
        return ""
    return "collective" if core.tables.placed.grouped else "servers"


def _speeds(core: CoordinatorCore) -> tuple[SpeedStatus, ...]:
    """The speed of each worker that has sealed a slot, and its part of the slots."""
    speeds = core.tables.speeds
    shares = speeds.shares()
    return tuple(
        SpeedStatus(m.name, round(seconds, 6), round(shares.get(m.node, 0.0), 4))
        for m in core.tables.members.active_workers()
        if (seconds := speeds.seconds_of(m.node)) is not None
    )


def _found(core: CoordinatorCore) -> dict[str, Any]:
    """What was found in the training and in its data."""
    texts = core.machines.warnings.texts
    return {"warnings": tuple(texts.values()), "bad_records": core.machines.bad_records.count}


def _of_hosts(core: CoordinatorCore) -> dict[str, Any]:
    """The fields of the status about hosts: those that shall be empty, those that are, and unequal machines."""
    return {
        "unequal": core.machines.warnings.unequal,
        "draining_hosts": tuple(sorted(core.tables.members.draining_hosts)),
        "drained_hosts": drained_hosts(core.tables),
    }


def _hosts(core: CoordinatorCore) -> dict[NodeId, str]:
    """The host of each server that stays."""
    leaving = core.tables.members.draining
    grouped = core.tables.placed.grouped
    return {m.node: m.host for m in holders(core.tables.members, grouped=grouped) if m.node not in leaving}


def _script(core: CoordinatorCore, worker: NodeId) -> str:
    """Where the script of a worker is: before its first loop, in a loop, or after one."""
    progress = core.tables.attendance.progress(worker)
    return "before" if progress < 0 else ("in", "after")[progress % 2]


def _epoch(core: CoordinatorCore, segment: Segment | None) -> int:
    """The epoch of the lowest uncommitted step; the last epoch if all steps of `segment` are committed."""
    if segment is None:
        return 0
    step = core.watermark.low
    return core.schedule.place(step).epoch if step < segment.end_step else segment.end_epoch


def _end_epoch(core: CoordinatorCore, phase: Phase | None) -> int | None:
    """The epoch in which the plan of `phase` ends; a stop ends the job earlier."""
    return None if phase is None else epochs_begun(core.tables.phases.last_segment(phase))


def _failure(core: CoordinatorCore) -> FailureStatus | None:
    if core.failure is None:
        return None
    return FailureStatus(core.failure.kind, core.failure.reason, core.failure.trace)


def status_of(core: CoordinatorCore, timeline: Timeline, now: float, run: str, start: int) -> Status:
    """The state of a run now. `start` counts the starts of the coordinator process, this one included."""
    phase = core.tables.phases.open or (core.tables.phases.phases[-1] if core.tables.phases.phases else None)
    segment = core.schedule.segment(core.watermark.low) if core.schedule.segments else None
    step = core.watermark.low
    workers = [m for m in core.tables.members.by_role("worker") if not m.left]
    draining = core.tables.members.draining
    return Status(
        run=run,
        state=core.state,
        headline=headline(core, run),
        advice=advice(core),
        step=step,
        end_step=phase.end if phase else None,
        version=core.version,
        epoch=_epoch(core, segment),
        end_epoch=_end_epoch(core, phase),
        samples=round(core.totals.samples),
        samples_per_s=_rate(core, timeline, now),
        slowest=_slowest(core),
        unfinished=unfinished(core, timeline),
        logs=plain(core.tables.log.values),
        metrics=plain({name: m.value for name, m in core.tables.rounds.metrics().items()}),
        metric_steps={name: m.step for name, m in core.tables.rounds.metrics().items()},
        validating=tuple(ValidationStatus(r.version, r.validator.name) for r in core.tables.rounds.running.values()),
        workers_alive=len(workers),
        workers=tuple(m.name for m in workers),
        servers=tuple(m.name for m in holders(core.tables.members, grouped=False)),
        wanted_workers=core.tables.members.wanted_workers,
        wanted_servers=core.tables.members.wanted_servers,
        replicas=core.spec.replicas,
        placement=placed(core.placement, core.spec.replicas, _hosts(core)),
        draining=tuple(sorted(map(name_of, draining))),
        drained=drained(core.placement, draining),
        failovers=core.tables.placed.failovers,
        failover_s=round(timeline.failover_s, 3),
        cuts=tuple(f"{name_of(node)} cannot reach {name_of(peer)}" for node, peer in core.machines.reachability.cuts),
        changes=tuple(
            ChangeStatus(c.number, c.kind, c.why, round(core.tables.clock.now - c.at, 3)) for c in timeline.changes
        ),
        processes=_processes(core),
        pid=os.getpid(),
        start=start,
        max_staleness=core.totals.max_staleness,
        lost_workers=core.totals.lost_workers,
        wasted_slots=core.totals.wasted_slots,
        generation=core.generation,
        incarnation=core.incarnation,
        rewinds=core.tables.incarnation.rewinds,
        recomputed_steps=core.tables.incarnation.recomputed,
        rewinding=core.machines.rewind.is_rewinding,
        checkpoint=_checkpoint(core, timeline, now),
        saving=core.machines.checkpoints.saving,
        left=tuple(m.name for m in core.tables.members.by_role("worker") if m.left),
        warning=core.machines.checkpoints.warning,
        failure=_failure(core),
        **_found(core),
        **_of_dials(core, timeline, now, segment),
        **_of_hosts(core),
    )


def summary_of(
    core: CoordinatorCore, timeline: Timeline, run: str, digest: str | None, warning: str = ""
) -> RunSummary:
    """The summary of a run. `warning`, unless empty, replaces the warning of the core."""
    seconds = timeline.seconds
    segment = core.schedule.segments[-1] if core.schedule.segments else None
    totals, measured = core.totals, core.tables.rounds.metrics()
    return RunSummary(
        run=run,
        state="failed" if core.failure else "unfinished" if unfinished(core, timeline) else "done",
        stopped=core.machines.segments.stop_reason,
        steps=max(0, core.version),
        samples=round(totals.samples),
        seconds=seconds,
        samples_per_s=totals.samples / seconds if seconds else 0.0,
        mode=segment.mode if segment else None,
        slots=segment.slots if segment else None,
        slot_batch=segment.batch_size if segment else None,
        workers=core.tables.members.wanted_workers,
        servers=core.tables.members.wanted_servers,
        replicas=core.spec.replicas,
        seed=core.tables.identity.job.seed if core.tables.identity.job else None,
        threads=core.tables.identity.job.threads if core.tables.identity.job else None,
        metrics=plain({**core.tables.log.values, **{name: m.value for name, m in measured.items()}}),
        metric_steps={name: m.step for name, m in measured.items()},
        max_staleness=totals.max_staleness,
        max_lag=totals.max_lag,
        skipped_slots=totals.skipped_slots,
        wasted_slots=totals.wasted_slots,
        lost_workers=totals.lost_workers,
        generations=core.generation,
        incarnation=core.incarnation,
        rewinds=core.tables.incarnation.rewinds,
        recomputed_steps=core.tables.incarnation.recomputed,
        failovers=core.tables.placed.failovers,
        failover_s=round(timeline.failover_s, 3),
        stop_reason=stop_reason(core, going_on=unfinished(core, timeline)),
        best=best_of(core),
        checkpoint=core.machines.checkpoints.newest.folder if core.machines.checkpoints.newest is not None else None,
        warning=warning or core.machines.checkpoints.warning,
        digest=digest,
        **_found(core),
        unequal=core.machines.warnings.unequal,
        plan=plan_lines(core),
        **of_summary(core),
    )
