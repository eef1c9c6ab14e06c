"""Does the log of a job hold together, and do its checkpoints agree with it?

Three sources are compared: the coordinator's commits and facts, the sampling function, and the hash chains in which
servers kept what they did. Nothing is believed because one of them says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.audit.case import Case
from paceline.core.audit.checkpoints import check_chains, check_positions
from paceline.core.audit.findings import Claim, Report
from paceline.core.audit.ledger import Ledger
from paceline.core.audit.plan import plan
from paceline.core.audit.replay import maker
from paceline.core.audit.steps import check_steps
from paceline.core.effects import FactRow, IncarnationFact
from paceline.core.lineage import lineage, start_of
from paceline.errors import StateError
from paceline.types import INIT_STEP, Commit


def audit(facts: Sequence[FactRow], commits: Iterable[Commit], claims: Sequence[Claim] = ()) -> Report:
    """Check a log, all of it, and the checkpoints that `claims` describe.

    `commits` come in the order of incarnation and version. The result depends on nothing else, and no problem in the
    log is an exception.
    """
    case = Case(facts, Ledger(commits), claims)
    _run(case)
    return case.report


def _run(case: Case) -> None:
    """Each check goes on from what the ones before it have found; only a log without a lineage ends it early."""
    if not _incarnations(case):
        return
    _versions(case)
    case.rows = np.concatenate([np.array(case.ledger.rows(s.incarnation, s.last), dtype=np.int64) for s in case.spans])
    counts = case.report.counts
    counts.commits, counts.recomputed = len(case.rows), len(case.ledger) - len(case.rows)
    counts.slots = int((case.ledger.first[case.rows + 1] - case.ledger.first[case.rows]).sum())
    counts.empty_slots = int(case.ledger.empty[case.rows].sum())
    _beginning(case)
    phases, schedule = plan(case, case.spans[-1].incarnation, check=True)
    check_steps(case, phases, schedule)
    _fences(case)
    check_positions(case)
    check_chains(case)


def _incarnations(case: Case) -> bool:
    """Whether every incarnation has a beginning that leads back to nothing."""
    for row in case.facts:
        if isinstance(row.fact, IncarnationFact):
            if row.fact.number in case.begun:
                number = row.fact.number
                case.report.add("lineage", f"incarnation {number} begins twice", incarnation=number)
            case.begun[row.fact.number] = row.fact
    case.report.counts.incarnations = len(case.begun) + 1
    for number in sorted({*case.begun, *np.unique(case.ledger.incarnation).tolist()}):
        try:
            lineage(case.begun.values(), of=number)
        except StateError as error:
            case.report.add("lineage", str(error), incarnation=number)
    if case.report.ok:
        case.spans = lineage(case.begun.values())
    return case.report.ok


def _versions(case: Case) -> None:
    """Versions of each incarnation are contiguous, as far as anybody relies on them."""
    needed: dict[int, int] = {}
    sources = [(f"incarnation {n} begins from", f.position) for n, f in case.begun.items() if f.position is not None]
    sources += [(f"checkpoint {claim.folder} is", claim.position) for claim in case.claims]
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
            case.report.counts.lost_commits += last - first + 1
            which = f"version {first}" if first == last else f"versions {first} to {last}"
            detail = f"{which} of incarnation {number} {'is' if first == last else 'are'} not in the log"
            case.report.add("version-missing", detail, incarnation=number, version=first)
        for i in np.flatnonzero(np.diff(edges[:-1]) < 1):
            version = int(edges[i + 1])
            detail = f"version {version} of incarnation {number} is not where it began from, or is there twice"
            case.report.add("version-twice", detail, incarnation=number, version=version)


def _beginning(case: Case) -> None:
    """The first version is the initial weights, and nothing else is."""
    steps, versions = case.ledger.step[case.rows], case.ledger.version[case.rows]
    for i in np.flatnonzero((steps == INIT_STEP) != (versions == 0)):
        version, step = int(versions[i]), int(steps[i])
        detail = f"version {version} is step {step}: version 0, and no other, is the initial weights"
        case.report.add("beginning", detail, version=version, step=step)
    for row in case.rows[steps == INIT_STEP]:
        if case.ledger.first[row + 1] - case.ledger.first[row] != 1:
            case.note_slots(row, "the initial weights are one attempt of one worker")


def _fences(case: Case) -> None:
    """An attempt counts in one slot of one commit, in the whole log."""
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
        case.report.counts.duplicate_slots += int(ours[row[a]] and ours[row[b]])
        where = [f"slot {slot[k]} of step {ledger.step[row[k]]} (version {ledger.version[row[k]]})" for k in (a, b)]
        generation, counter = fences[a].tolist()
        detail = f"attempt ({generation}, {counter}) counts in {where[0]} and in {where[1]}"
        step, version = int(ledger.step[row[b]]), int(ledger.version[row[b]])
        case.report.add("fence-twice", detail, step=step, version=version, slot=int(slot[b]))
