"""Whether checkpoints are what the log says of their versions."""

from __future__ import annotations

import numpy as np

from paceline.core.audit.case import Case, contained
from paceline.core.audit.findings import LISTED
from paceline.core.audit.plan import plan
from paceline.core.audit.replay import Point, chains_at, maker
from paceline.core.lineage import lineage
from paceline.messages import Position
from paceline.types import INIT_STEP


def check_positions(case: Case) -> None:
    """Where a checkpoint, or an incarnation that began from one, is in the job is what the log says."""
    kept = {claim.folder: _place_of(claim.position) for claim in case.claims}
    for number, fact in case.begun.items():
        if fact.position is None:
            continue
        _position(case, fact.position, f"incarnation {number}", incarnation=number)
        here = _place_of(fact.position)
        if kept.get(fact.folder, here) != here:
            detail = f"incarnation {number} did not begin with what checkpoint {fact.folder} says"
            case.report.add("position", detail, incarnation=number, folder=fact.folder)
    for claim in case.claims:
        _position(case, claim.position, f"checkpoint {claim.folder}", folder=claim.folder)


def _position(case: Case, position: Position, name: str, /, **where: int | str) -> None:
    """What a checkpoint says of its place in the job is what the log says of that version."""
    point = (position.incarnation, position.version)
    if not case.ledger.has(*maker(case.begun, point)):
        return  # told already
    spans = lineage(case.begun.values(), *point)
    parts = [case.ledger.rows(s.incarnation, s.last) for s in spans]
    steps = np.concatenate([case.ledger.step[part.start : part.stop] for part in parts])
    low, above = contained(steps[steps != INIT_STEP])
    if (position.watermark, position.above) != (low, above):
        detail = f"{name} begins with all steps below {position.watermark} and {list(position.above)}, but version "
        detail += f"{point[1]} of incarnation {point[0]} has those below {low} and {list(above[:LISTED])}"
        case.report.add("position", detail, **where, version=point[1])
    _, schedule = plan(case, position.incarnation)
    known = set(schedule.segments)
    unknown = [s for s in position.segments if s.step < s.end_step and s not in known]
    if unknown:
        detail = f"{name} has a segment that incarnation {position.incarnation} has not: {unknown[0]}"
        case.report.add("position", detail, **where, step=unknown[0].step)


def check_chains(case: Case) -> None:
    """Each block came to a checkpoint by the attempts that the log names, and by no others."""
    counts = case.report.counts
    num_blocks = max((len(claim.chains) for claim in case.claims), default=0)
    points: list[Point] = [(claim.position.incarnation, claim.position.version) for claim in case.claims]
    expected = chains_at(case.ledger, case.begun, points, num_blocks)
    for claim, point in zip(case.claims, points, strict=True):
        if point not in expected:
            continue
        counts.checkpoints += 1
        wrong: dict[tuple[str, str], list[int]] = {}
        for block, chain in enumerate(expected[point]):
            got = claim.chains[block] if block < len(claim.chains) else ""
            if got != chain.hex():
                wrong.setdefault((got or "none", chain.hex()), []).append(block)
        for (got, due), blocks in wrong.items():
            named = ", ".join(map(str, blocks[:LISTED])) + (" …" if len(blocks) > LISTED else "")
            detail = f"checkpoint {claim.folder}: block {named} did not become version {point[1]} by the attempts in "
            detail += f"the log (chain {got}, not {due})"
            case.report.add("chain", detail, folder=claim.folder, block=blocks[0], version=point[1])


def _place_of(position: Position) -> tuple[object, ...]:
    """What must be the same wherever a position is told. Metrics may be nan, which is never the same."""
    return position.incarnation, position.version, position.watermark, position.above, position.segments
