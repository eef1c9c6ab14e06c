"""The samples that a log leaves out as bad records, and how many of them each step has."""

from __future__ import annotations

import numpy as np

from paceline.core.audit.case import Case
from paceline.core.audit.coverage import Steps
from paceline.core.audit.ledger import Ints
from paceline.core.audit.plan import AuditedPlan
from paceline.core.effects import BadRecordFact
from paceline.core.sampling import samples_at

_LARGEST = 1 << 24  # samples of a step that are looked up


def bad_records(case: Case) -> dict[int, list[tuple[int, int]]]:
    """The runs of samples, as (first, end), that are left out of each phase. The report names them."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in case.facts:
        fact = row.fact
        if isinstance(fact, BadRecordFact):
            found.setdefault(fact.phase, []).append((fact.record.first, fact.record.first + fact.record.count))
            which = f"sample {fact.record.first}"
            if fact.record.count > 1:
                which = f"samples {fact.record.first} to {fact.record.first + fact.record.count - 1}"
            case.report.leave_out(f"{which} of phase {fact.phase}: {fact.record.why}")
    return {phase: _merged(runs) for phase, runs in found.items()}


def left_out(case: Case, plan: AuditedPlan, steps: Steps, lacking: Ints, seed: int) -> Ints:
    """How many of the samples of the steps with the indices `lacking` are bad records. Names them in the report."""
    runs = bad_records(case)
    specs = {entry.spec.number: entry.spec for entry in plan.phases}
    out = np.zeros(len(lacking), dtype=np.int64)
    for k, i in enumerate(lacking):
        phase, samples = int(steps.phase[i]), int(steps.samples[i])
        if phase not in runs or phase not in specs or samples > _LARGEST:
            continue
        if specs[phase].weights:  # only workers know which samples were drawn
            out[k] = -1
            continue
        at = np.arange(samples, dtype=np.int64) + int(steps.offset[i])
        chosen = samples_at(at, specs[phase], seed, int(steps.epoch[i]))
        starts, ends = (np.array(side, dtype=np.int64) for side in zip(*runs[phase], strict=True))
        run = np.searchsorted(starts, chosen, side="right") - 1
        out[k] = int(((run >= 0) & (chosen < ends[run])).sum())
    return out


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, end in sorted(runs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged
