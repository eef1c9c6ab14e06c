"""Check the log of a job, and its checkpoints against the log.

The audit compares three sources: the coordinator's commits and facts, the sampling function, and the hash chains that
servers wrote into checkpoints. It trusts none of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.audit.case import Case
from paceline.core.audit.checkpoints import check_chains, check_positions
from paceline.core.audit.findings import CheckpointRecord, Report
from paceline.core.audit.ledger import Ledger
from paceline.core.audit.plan import plan
from paceline.core.audit.replay import maker
from paceline.core.audit.steps import check_steps
from paceline.core.effects import FactRow
from paceline.core.lineage import start_of
from paceline.types import INIT_STEP, Commit


def audit(facts: Sequence[FactRow], commits: Iterable[Commit], checkpoints: Sequence[CheckpointRecord] = ()) -> Report:
    """Check a whole log and its checkpoints.

    `commits` must be in the order of incarnation and version. Problems in the log are listed in the report and never
    raise an exception.
    """
    case = Case(facts, Ledger(commits), checkpoints)
    _run(case)
    return case.report


def _run(case: Case) -> None:
    """Run every check. Stop early if the log gives no lineage: the other checks read the commits along the lineage."""
    if not case.follow_lineage():
        return
    _versions(case)
    steps = case.rows[case.ledger.step[case.rows] != INIT_STEP]
    case.report.count(
        commits=len(case.rows),
        steps=len(steps),
        recomputed=len(case.ledger) - len(case.rows),
        slots=int((case.ledger.first[steps + 1] - case.ledger.first[steps]).sum()),
        empty_slots=int(case.ledger.empty[case.rows].sum()),
    )
    _beginning(case)
    found = plan(case, case.spans[-1].incarnation, check=True)
    case.report.count(segments=len(found.schedule.segments))
    check_steps(case, found)
    _fences(case)
    check_positions(case)
    check_chains(case)


def _versions(case: Case) -> None:
    """Check that the log has each version once, without gaps, up to the last that a checkpoint or incarnation needs."""
    needed: dict[int, int] = {}
    sources = [(f"incarnation {n} begins from", f.position) for n, f in case.begun.items() if f.position is not None]
    sources += [(f"checkpoint {saved.folder} is", saved.position) for saved in case.checkpoints]
    for what, position in sources:
        at = maker(case.begun, (position.incarnation, position.version))
        needed[at[0]] = max(needed.get(at[0], -1), at[1])
        if not case.ledger.has(*at):
            case.report.add(
                "version-missing",
                f"{what} version {at[1]} of incarnation {at[0]}, which is not in the log",
                incarnation=at[0],
                version=at[1],
            )
    for number in sorted({*needed, *np.unique(case.ledger.incarnation).tolist()}):
        rows = case.ledger.rows(number)
        found = case.ledger.version[rows.start : rows.stop]
        start = start_of(case.begun.get(number))
        edges = np.concatenate(([start], found, [max(needed.get(number, -1), int(found.max(initial=start))) + 1]))
        for i in np.flatnonzero(np.diff(edges) > 1):
            first, last = int(edges[i]) + 1, int(edges[i + 1]) - 1
            case.report.count(lost_commits=last - first + 1)
            which = f"version {first}" if first == last else f"versions {first} to {last}"
            detail = f"{which} of incarnation {number} {'is' if first == last else 'are'} not in the log"
            case.report.add("version-missing", detail, incarnation=number, version=first)
        for i in np.flatnonzero(np.diff(edges[:-1]) < 1):
            version = int(edges[i + 1])
            detail = f"version {version} of incarnation {number} is at or below its beginning, or occurs twice"
            case.report.add("version-twice", detail, incarnation=number, version=version)


def _beginning(case: Case) -> None:
    """Check that version 0, and no other version, is the initial weights."""
    steps, versions = case.ledger.step[case.rows], case.ledger.version[case.rows]
    for i in np.flatnonzero((steps == INIT_STEP) != (versions == 0)):
        version, step = int(versions[i]), int(steps[i])
        detail = f"version {version} is step {step}: version 0, and no other, is the initial weights"
        case.report.add("beginning", detail, version=version, step=step)
    for row in case.rows[steps == INIT_STEP]:
        if case.ledger.first[row + 1] - case.ledger.first[row] != 1:
            case.wrong_attempts(row, "the initial weights are one attempt of one worker")


def _fences(case: Case) -> None:
    """Check that no attempt counts twice: each belongs to one slot of one commit in the whole log."""
    ledger = case.ledger
    row = np.repeat(np.arange(len(ledger)), np.diff(ledger.first))
    slot = np.arange(len(ledger.fences)) - ledger.first[row]
    fences = ledger.fences
    more = {
        (*fence, r, i)
        for r, variants in ledger.variants.items()
        for _, others in variants
        for i, fence in enumerate(others)
    }
    named = {
        (*pair, r, i)
        for r in ledger.variants
        for i, pair in enumerate(map(tuple, fences[ledger.first[r] : ledger.first[r + 1]].tolist()))
    }
    if more - named:
        extra = np.array(sorted(more - named), dtype=np.int64)
        fences = np.concatenate((fences, extra[:, :2]))
        row, slot = np.concatenate((row, extra[:, 2])), np.concatenate((slot, extra[:, 3]))
    order = np.lexsort((fences[:, 1], fences[:, 0]))
    same = (np.diff(fences[order], axis=0) == 0).all(axis=1)
    ours = np.zeros(len(ledger), dtype=np.bool_)
    ours[case.rows] = True
    for i in np.flatnonzero(same):
        a, b = order[i], order[i + 1]
        case.report.count(duplicate_slots=int(ours[row[a]] and ours[row[b]]))
        where = [f"slot {slot[k]} of step {ledger.step[row[k]]} (version {ledger.version[row[k]]})" for k in (a, b)]
        generation, counter = fences[a].tolist()
        detail = f"attempt ({generation}, {counter}) counts in {where[0]} and in {where[1]}"
        step, version = int(ledger.step[row[b]]), int(ledger.version[row[b]])
        case.report.add("fence-twice", detail, step=step, version=version, slot=int(slot[b]))
