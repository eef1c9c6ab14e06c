"""Bad records: samples that are left out of every epoch, since their content is damaged.

Rule 24: a bad record is durable, by its position, before a slot without it is sealed. A worker that finds one asks
first, and seals after the answer.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import JobFailed, Output, WarningFound
from paceline.core.effects import BadRecordFact, History, Send
from paceline.messages import LeaveOut, Ok, Position
from paceline.types import BadRecord, NodeId


class BadRecords:
    """Owns the bad records of each phase. They outlive a rewind: the data are the same."""

    def __init__(self, tables: Tables) -> None:
        self._members = tables.members
        self._known: dict[int, list[BadRecord]] = {}

    @property
    def count(self) -> int:
        """How many samples are left out, of the phase that has most."""
        return max((_size(records) for records in self._known.values()), default=0)

    def restore(self, history: History) -> list[Output]:
        """Take over the bad records of the log."""
        for row in history.facts:
            if isinstance(row.fact, BadRecordFact):
                self._known.setdefault(row.fact.phase, []).append(row.fact.record)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Keep the bad records: the job reads the same data again."""
        return []

    def leave_out(self, sender: NodeId, message: LeaveOut) -> list[Output]:
        """Note bad records of a phase, and answer when they are durable. The job fails if they are too many."""
        known = self._known.setdefault(message.phase, [])
        out: list[Output] = []
        for record in message.records:
            if not any(_contains(other, record) for other in known):
                known.append(record)
                out.append(BadRecordFact(message.phase, record, self._members.name(sender)))
                out.append(WarningFound(f"bad record {message.phase}", f"left out: {record.why}"))
        if (count := _size(known)) > message.limit:
            reason = (
                f"{count} bad records, and max_bad_records={message.limit}. The last: {known[-1].why}. Correct "
                "the data, or raise max_bad_records= of job.batches"
            )
            return [*out, JobFailed("script", reason)]
        return [*out, Send(sender, Ok(message.req))]


def _size(records: list[BadRecord]) -> int:
    return sum(record.count for record in records)


def _contains(known: BadRecord, record: BadRecord) -> bool:
    return known.first <= record.first and record.first + record.count <= known.first + known.count
