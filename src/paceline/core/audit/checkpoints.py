"""Compare checkpoints with the log: their positions and their hash chains."""

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
    """Check that the positions which checkpoints and starts of incarnations record agree with the log."""
    kept = {saved.folder: _identity(saved.position) for saved in case.checkpoints}
    for number, fact in case.begun.items():
        if fact.position is None:
            continue
        _position(case, fact.position, f"incarnation {number}", incarnation=number)
        here = _identity(fact.position)
        if kept.get(fact.folder, here) != here:
            detail = f"incarnation {number} began at another position than its checkpoint {fact.folder} records"
            case.report.add("position", detail, incarnation=number, folder=fact.folder)
    for saved in case.checkpoints:
        _position(case, saved.position, f"checkpoint {saved.folder}", folder=saved.folder)


def _position(case: Case, position: Position, name: str, /, **where: int | str) -> None:
    """Check that the log has, for the version of `position`, the steps and segments that `position` names."""
    point = (position.incarnation, position.version)
    if not case.ledger.has(*maker(case.begun, point)):
        return  # another check has reported this
    spans = lineage(case.begun.values(), *point)
    parts = [case.ledger.rows(s.incarnation, s.last) for s in spans]
    steps = np.concatenate([case.ledger.step[part.start : part.stop] for part in parts])
    low, above = contained(steps[steps != INIT_STEP])
    if (position.watermark, position.above) != (low, above):
        detail = f"{name} begins with all steps below {position.watermark} and {list(position.above)}, but version "
        detail += f"{point[1]} of incarnation {point[0]} has those below {low} and {list(above[:LISTED])}"
        case.report.add("position", detail, **where, version=point[1])
    known = set(plan(case, position.incarnation).every)  # a later change may have replaced some
    unknown = [s for s in position.segments if s.step < s.end_step and s not in known]
    if unknown:
        detail = f"{name} has a segment that incarnation {position.incarnation} does not have: {unknown[0]}"
        case.report.add("position", detail, **where, step=unknown[0].step)


def check_chains(case: Case) -> None:
    """Check that the hash chain of each block in each checkpoint is the chain of the attempts that the log names."""
    num_blocks = max((len(saved.chains) for saved in case.checkpoints), default=0)
    points: list[Point] = [(saved.position.incarnation, saved.position.version) for saved in case.checkpoints]
    expected = chains_at(case.ledger, case.begun, points, num_blocks)
    for saved, point in zip(case.checkpoints, points, strict=True):
        if point not in expected:
            continue
        case.report.count(checkpoints=1)
        wrong: dict[tuple[str, str], list[int]] = {}
        for block, chain in enumerate(expected[point]):
            got = saved.chains[block] if block < len(saved.chains) else ""
            if got != chain.hex():
                wrong.setdefault((got or "none", chain.hex()), []).append(block)
        for (got, due), blocks in wrong.items():
            named = ", ".join(map(str, blocks[:LISTED])) + (" …" if len(blocks) > LISTED else "")
            detail = f"checkpoint {saved.folder}: block {named} did not become version {point[1]} by the attempts in "
            detail += f"the log (chain {got}, not {due})"
            case.report.add("chain", detail, folder=saved.folder, block=blocks[0], version=point[1])


def _identity(position: Position) -> tuple[object, ...]:
    """The fields that must be equal in two records of one position. Metrics are left out: nan never equals nan."""
    return position.incarnation, position.version, position.watermark, position.above, position.segments
