"""The records of a run: typed events, derived from the log. Whoever derives them, and when, gets the same ones.

A record is made only of rows that a mark of the log covers, so it has a time of day that never changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from paceline.config.live import in_words
from paceline.coordinator.json_numbers import plain, shown
from paceline.coordinator.reader import LogReader
from paceline.core.effects import (
    AnyFact,
    CheckpointFact,
    ClaimFact,
    DrainFact,
    EvaluationRow,
    FactRow,
    IncarnationFact,
    JobFact,
    MarkFact,
    MemberFact,
    PhaseFact,
    PlacementFact,
    PolicyFact,
    ScaleFact,
    SegmentFact,
    StopFact,
    ValidatorFact,
    WarningFact,
)
from paceline.messages.status import Number
from paceline.types import DialChange

KINDS = ("job", "member", "placement", "rewind", "segment", "policy", "validation", "checkpoint", "warning", "stop")
"""The kinds of records."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a run. `row` names the row of the log that it is made of; `values` are numbers, by name."""

    row: str
    kind: str
    at: float
    incarnation: int
    version: int
    text: str
    values: dict[str, Number] = {}


class Place(NamedTuple):
    """How far records were derived: the last rows of facts and evaluations."""

    fact: int = 0
    evaluation: int = 0


START = Place()


def derive(reader: LogReader, place: Place = START) -> tuple[list[Record], Place]:
    """The records of the rows after `place` that marks cover, in order; and how far they go."""
    found: list[Record] = []
    evaluations = reader.evaluations_after(place.evaluation)
    waiting: list[tuple[int, FactRow]] = []
    for seq, row in reader.facts_after(place.fact):
        if not isinstance(row.fact, MarkFact):
            waiting.append((seq, row))
            continue
        for number, known in waiting:
            described = _of_fact(known.fact)
            if described is not None:
                kind, text = described
                found.append(Record(f"f{number}", kind, row.fact.at, known.incarnation, known.version, text))
        waiting.clear()
        count = sum(1 for number, _ in evaluations if number <= row.fact.evaluations)
        found += [_of_evaluation(number, result, row.fact.at) for number, result in evaluations[:count]]
        place = Place(seq, max(place.evaluation, row.fact.evaluations))
        evaluations = evaluations[count:]
    return found, place


def place_of(records: Iterable[Record]) -> Place:
    """How far records go, if these are the last of them, in order."""
    place = START
    for record in records:
        number = int(record.row[1:])
        place = place._replace(fact=number) if record.row[0] == "f" else place._replace(evaluation=number)
    return place


def _of_evaluation(number: int, row: EvaluationRow, at: float) -> Record:
    values = ", ".join(f"{name} {shown(value)}" for name, value in row.values.items())
    text = f"version {row.version}: {row.name}: {values}"
    return Record(f"e{number}", "validation", at, row.incarnation, row.version, text, plain(row.values))


def _of_fact(fact: AnyFact) -> tuple[str, str] | None:
    """The kind and the text of the record of a fact; None if it has none."""
    match fact:
        case JobFact(job):
            return "job", f"the job begins: mode {job.mode}, seed {job.seed}"
        case MemberFact(name=name, host=host, change=change, why=why):
            return "member", f"{name} ({host}) {change}" + f": {why}" * bool(why)
        case PlacementFact(placement=placement, why=why, failover=failover, planned=planned):
            kind = "failover" if failover else "planned" if planned else "shrunk" if why else "placed"
            return "placement", f"placement {placement.epoch}: {kind}" + f": {why}" * bool(why)
        case IncarnationFact(number, folder, _, why):
            return "rewind", f"incarnation {number} begins from {folder or 'the beginning'}: {why}"
        case PhaseFact(spec, segment):
            return (
                "segment",
                f"loop {spec.number + 1} begins at step {segment.step}: {segment.mode}, {segment.slots} slots",
            )
        case SegmentFact(step, _, change, reason) if change != DialChange():
            return "segment", f"from step {step}: {in_words(change)}" + f" ({reason})" * bool(reason)
        case ValidatorFact(validator):
            when = f"every {validator.every} steps" if validator.every else "when the script asks"
            return "policy", f"validation {validator.name}: {when}, {validator.data_len} samples"
        case PolicyFact(declared):
            return "policy", f"policy: {declared.policy.source}"
        case CheckpointFact(folder):
            return "checkpoint", f"{folder} is complete"
        case WarningFact(_, text):
            return "warning", text
        case StopFact(reason, _, step):
            return "stop", f"the job ends before step {step}: {reason}"
        case _:
            return _of_rare_fact(fact)


def _of_rare_fact(fact: AnyFact) -> tuple[str, str] | None:
    match fact:
        case ClaimFact(key, saved) if saved is not None:
            return "job", f"{key} wrote {saved.file}"
        case ScaleFact(workers, servers):
            wanted = [f"{n} {role}" for n, role in ((workers, "workers"), (servers, "servers")) if n]
            return "member", f"wanted from now on: {', '.join(wanted)}"
        case DrainFact(host, undo):
            return "member", f"host {host} may hold blocks again" if undo else f"host {host} shall be emptied"
        case _:
            return None
