"""What people see of a run: its state now, and its summary at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.coordinator.numbers import plain, shown
from paceline.core.coordinator import CoordinatorCore
from paceline.types import UNLIMITED

_LATE_S = 5.0  # after which the progress line names whom a step waits for

if TYPE_CHECKING:
    from paceline.coordinator.service import Times


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
    """One line: step, epoch, speed, loss, last validation, workers alive, staleness."""
    if status.get("step") is None or status.get("end_step") is None:
        return f"{status.get('state', 'starting')} · {status.get('workers_alive', 0)} workers"
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
    alive = status["workers_alive"]
    parts.append(f"{alive} worker{'s' * (alive != 1)}")
    if status.get("mode") != "bsp":
        parts.append(f"staleness ≤ {status['max_staleness']}")
    return " · ".join(parts)


def _rate(core: CoordinatorCore, times: Times) -> float:
    """Samples per second: of late while the run goes on, else from version 0 to the last commit."""
    history = times.versions
    if core.phases.open is not None and len(history) > 1:
        return (history[-1][2] - history[0][2]) / (history[-1][0] - history[0][0])
    if times.began is None or times.last is None or times.last == times.began:
        return 0.0
    return core.totals.samples / (times.last - times.began)


def _slowest(core: CoordinatorCore) -> dict[str, object] | None:
    """The lease that the oldest uncommitted step has waited for longest."""
    lease = core.leases.oldest_open(core.watermark.low)
    if lease is None:
        return None
    member = core.members.members.get(lease.worker)
    worker = member.name if member is not None else lease.worker
    return {"step": lease.slot.step, "slot": lease.slot.slot, "worker": worker, "seconds": core.now - lease.at}


def _unfinished(core: CoordinatorCore) -> bool:
    return core.phases.open is not None and core.watermark.low < core.phases.open.end


def status_of(core: CoordinatorCore, times: Times, now: float, run: str) -> dict[str, object]:
    """The state of a run now."""
    rate = _rate(core, times)
    phase = core.phases.open or (core.phases.phases[-1] if core.phases.phases else None)
    segment = core.schedule.segment(core.watermark.low) if core.schedule.segments else None
    step = core.watermark.low
    epoch = 0
    if segment is not None and step < segment.end_step:
        epoch = core.schedule.place(step).epoch
    elif segment is not None:
        epoch = segment.end_epoch
    workers = [m for m in core.members.by_role("worker") if not m.left]
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
        "samples_per_s": rate,
        "slowest": _slowest(core),
        "unfinished": _unfinished(core),
        "logs": plain(core.logs),
        "metrics": plain(core.evaluations.metrics()),
        "validating": [{"version": r.version, "name": r.validator.name} for r in core.evaluations.rounds.values()],
        "workers_alive": len(workers),
        "workers": [m.name for m in workers],
        "servers": [m.name for m in core.members.by_role("server")],
        "max_staleness": core.totals.max_staleness,
        "lost_workers": core.totals.lost_workers,
        "generation": core.generation,
        "incarnation": core.incarnation,
        "failure": None
        if core.failure is None
        else {"kind": core.failure.kind, "reason": core.failure.reason, "trace": core.failure.trace},
    }


def summary_of(core: CoordinatorCore, times: Times, run: str, digest: str | None) -> dict[str, object]:
    """The summary of a run that has ended."""
    seconds = 0.0 if times.began is None or times.last is None else times.last - times.began
    segment = core.schedule.segments[-1] if core.schedule.segments else None
    totals = core.totals
    return {
        "run": run,
        "state": "failed" if core.failure else "unfinished" if _unfinished(core) else "done",
        "stopped": core.stop_reason,
        "steps": max(0, core.version),
        "samples": round(totals.samples),
        "seconds": seconds,
        "samples_per_s": totals.samples / seconds if seconds else 0.0,
        "mode": segment.mode if segment else None,
        "slots": segment.slots if segment else None,
        "slot_batch": segment.batch_size if segment else None,
        "workers": core.spec.workers,
        "servers": core.spec.servers,
        "seed": core.job.seed if core.job else None,
        "threads": core.job.threads if core.job else None,
        "metrics": plain({**core.logs, **core.evaluations.metrics()}),
        "max_staleness": totals.max_staleness,
        "max_lag": totals.max_lag,
        "skipped_slots": totals.skipped_slots,
        "wasted_slots": totals.wasted_slots,
        "lost_workers": totals.lost_workers,
        "digest": digest,
    }
