"""Check that the commits are the planned steps: each once, in order, from the right attempts."""

from __future__ import annotations

import numpy as np

from paceline.core.audit.bad_records import left_out
from paceline.core.audit.case import Case, contained
from paceline.core.audit.coverage import Hole, Steps, cover, place_all
from paceline.core.audit.ledger import Ints
from paceline.core.audit.plan import AuditedPlan
from paceline.core.audit.replay import maker
from paceline.core.effects import JobFact
from paceline.core.schedule import Schedule
from paceline.types import INIT_STEP, UNLIMITED, PhaseEntry

_COUNTED = 10_000  # in each gap, the slots of this many missing steps are counted; each further step counts as one slot


def check_steps(case: Case, plan: AuditedPlan) -> None:
    """Check that each planned step that the job has reached was committed once, with its own samples."""
    phases, schedule = plan.phases, plan.schedule
    rows = case.rows[case.ledger.step[case.rows] != INIT_STEP]
    ends = case.ledger.step[rows]
    first = schedule.segments[0].step if schedule.segments else 0
    known = (ends >= first) & (ends < schedule.end_step)
    for row in rows[~known]:
        step, version = int(case.ledger.step[row]), int(case.ledger.version[row])
        detail = f"version {version} is step {step}, which no segment plans"
        case.report.add("step-unknown", detail, version=version, step=step)
    rows = rows[known]
    steps = place_all(schedule, case.ledger.step[rows])
    seed = _seed(case)
    _twice(case, rows, steps)
    _made_of(case, rows, steps)
    bad = _samples(case, plan, rows, steps, seed)
    _order(case, rows, steps)
    bound = _bound(case, phases, steps)
    _missing(case, schedule, steps, bound)
    covered = cover(phases, steps, bound, seed, plan.lasts)
    case.report.count(samples=int(steps.samples.sum()) - bad, bad_samples=bad)
    case.report.count(epochs=covered.epochs, left_out=covered.left_out)
    case.report.leave_begun(covered.begun)
    for hole in covered.holes:
        _hole(case, hole)


def _seed(case: Case) -> int:
    jobs = [row.fact.job for row in case.facts if isinstance(row.fact, JobFact)]
    if not jobs and len(case.rows):
        case.report.add("job", "the log has no seed: the fact with the job's arguments is missing")
    jobs += [fact.position.job for fact in case.begun.values() if fact.position is not None]
    if len({job.seed for job in jobs}) > 1:
        case.report.add("job", f"the log names several seeds: {sorted({job.seed for job in jobs})}")
    return jobs[0].seed if jobs else 0


def _twice(case: Case, rows: Ints, steps: Steps) -> None:
    order = np.argsort(steps.step, kind="stable")
    for i in np.flatnonzero(np.diff(steps.step[order]) == 0):
        a, b = (int(case.ledger.version[rows[order[k]]]) for k in (i, i + 1))
        step = int(steps.step[order[i]])
        case.report.count(duplicate_slots=int(steps.slots[order[i]]))
        case.report.add("step-twice", f"step {step} is version {a} and version {b}", step=step, version=b)


def _made_of(case: Case, rows: Ints, steps: Steps) -> None:
    """Check that each slot of a step has one attempt, computed within the window, and that no sample is missing."""
    ledger = case.ledger
    got = ledger.first[rows + 1] - ledger.first[rows]
    lost, duplicate = np.maximum(steps.slots - got, 0), np.maximum(got - steps.slots, 0)
    case.report.count(lost_slots=int(lost.sum()), duplicate_slots=int(duplicate.sum()))
    for i in np.flatnonzero(got != steps.slots):
        detail = f"version {ledger.version[rows[i]]} names {got[i]} attempts for step {steps.step[i]}, which has "
        case.wrong_attempts(rows[i], detail + f"{steps.slots[i]} slots")
    wanted = dict(zip(rows.tolist(), steps.slots.tolist(), strict=True))
    for row, variants in ledger.variants.items():
        for blocks, fences in variants:
            if row in wanted and len(fences) != wanted[row]:
                detail = f"version {ledger.version[row]} names {len(fences)} attempts for blocks {blocks} of step "
                case.wrong_attempts(row, detail + f"{ledger.step[row]}, which has {wanted[row]} slots")
    stale = ledger.staleness[rows]
    for i in np.flatnonzero((steps.window != UNLIMITED) & (stale > steps.window)):
        version, step = int(ledger.version[rows[i]]), int(steps.step[i])
        detail = f"version {version} (step {step}) was computed on a state {stale[i]} steps old; the window is "
        case.report.add("stale", f"{detail}{steps.window[i]}", version=version, step=step)


def _samples(case: Case, plan: AuditedPlan, rows: Ints, steps: Steps, seed: int) -> int:
    """Check how many samples each step counts. Returns how many the log leaves out of these steps as bad records."""
    samples, empty = case.ledger.samples[rows], case.ledger.empty[rows]
    differs = np.abs(samples - steps.samples) > 1e-6 * steps.samples
    lacking = np.flatnonzero(differs)
    out = left_out(case, plan, steps, lacking, seed)
    wanted = steps.samples.astype(np.float64)
    wanted[lacking] = np.where(out < 0, samples[lacking], wanted[lacking] - out)
    wrong = (np.abs(samples - wanted) > 1e-6 * steps.samples) & (empty == 0)
    wrong |= (samples < 0) | (samples > steps.samples * (1 + 1e-6)) | (empty < 0) | (empty > steps.slots)
    for i in np.flatnonzero(wrong):
        version, step = int(case.ledger.version[rows[i]]), int(steps.step[i])
        detail = f"version {version} (step {step}) counts {samples[i]:g} samples and {empty[i]} empty slots; "
        detail += f"the step has {steps.samples[i]} samples"
        if wanted[i] != steps.samples[i]:
            detail += f", {wanted[i]:g} of them without the bad records"
        case.report.add("samples", detail, version=version, step=step)
    return int(out[out > 0].sum())


def _order(case: Case, rows: Ints, steps: Steps) -> None:
    """Check that each step was committed after every step that its window requires; in lock-step, in step order."""
    order = np.argsort(steps.step, kind="stable")
    latest = np.maximum.accumulate(order)  # for each step: when the last of the steps up to it was committed
    upto = np.searchsorted(steps.step[order], _needs(steps)) - 1
    for i in np.flatnonzero((upto >= 0) & (latest[upto] > np.arange(len(rows)))):
        version, step = int(case.ledger.version[rows[i]]), int(steps.step[i])
        other = int(steps.step[latest[upto[i]]])
        detail = f"version {version} is step {step}, but step {other} is committed later"
        case.report.add("order", f"{detail} (window {steps.window[i]})", version=version, step=step)


def _bound(case: Case, phases: list[PhaseEntry], steps: Steps) -> int:
    """The step below which all steps must be in the log, because a later step, phase or checkpoint requires them."""
    bounds = [int(_needs(steps).max(initial=0)), *(entry.segment.step for entry in phases)]
    ours = {(s.incarnation, s.last) for s in case.spans}
    newest = case.begun.get(case.spans[-1].incarnation)
    positions = [newest.position] if newest is not None and newest.position is not None else []
    for saved in case.checkpoints:
        made_by, version = maker(case.begun, (saved.position.incarnation, saved.position.version))
        if any(made_by == number and (last is None or version <= last) for number, last in ours):
            positions.append(saved.position)
    bounds += [position.watermark for position in positions]
    low, _ = contained(steps.step)
    return max(low, *bounds)


def _missing(case: Case, schedule: Schedule, steps: Steps, bound: int) -> None:
    have = np.unique(steps.step[steps.step < bound])
    edges = np.concatenate(([-1], have, [bound]))
    for i in np.flatnonzero(np.diff(edges) > 1):
        first, last = int(edges[i]) + 1, int(edges[i + 1]) - 1
        case.report.count(lost_slots=max(0, last - first - _COUNTED))
        for step in range(first, min(last, first + _COUNTED) + 1):
            slots = schedule.num_slots(step) if schedule.covers(step) else 1
            case.report.count(lost_slots=slots)
            case.report.add("step-missing", f"step {step} ({slots} slots) was never committed", step=step)


def _hole(case: Case, hole: Hole) -> None:
    named = ", ".join(map(str, hole.samples)) + (" …" if hole.count > len(hole.samples) else "")
    what = "applied more than once" if hole.twice else "never applied"
    case.report.add(
        "sample-twice" if hole.twice else "sample-missing",
        f"epoch {hole.epoch} (phase {hole.phase}): {hole.count} samples were {what}: {named}",
        epoch=hole.epoch,
        phase=hole.phase,
        sample=hole.samples[0] if hole.samples else -1,
    )


def _needs(steps: Steps) -> Ints:
    """For each step t, the step below which all steps must be committed before t."""
    low = np.where(steps.window == UNLIMITED, 0, steps.step - steps.window)
    return np.maximum(steps.start, low)
