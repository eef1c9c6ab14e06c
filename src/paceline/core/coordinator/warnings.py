"""Warnings for the user: numbers that are not finite, what workers found in their turns, and unequal machines.

The first warning about a topic counts for the whole job: it is durable, so that no restart repeats it.
"""

from __future__ import annotations

from math import isfinite

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, ServerJoined, SlotSealed, WarningFound, WorkerJoined
from paceline.core.coordinator.machine_kinds import (
    UNEQUAL_SERVERS,
    UNEQUAL_WORKERS,
    other_kind,
    servers_text,
    workers_text,
)
from paceline.core.effects import History, Send, WarningFact
from paceline.messages import NOT_FINITE, Ok, Position, Sealed, Warn
from paceline.types import NodeId


class Warnings:
    """Owns the warnings of the job. `texts` has one for each topic, in the order in which they came."""

    def __init__(self, tables: Tables) -> None:
        self.texts: dict[str, str] = {}
        self._members = tables.members

    def restore(self, history: History) -> list[Output]:
        """Take over the warnings of earlier coordinators."""
        for row in history.facts:
            if isinstance(row.fact, WarningFact):
                self.texts.setdefault(row.fact.topic, row.fact.text)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Keep the warnings: the job does again what it did."""
        return []

    def sealed(self, event: SlotSealed) -> list[Output]:
        """Take the warnings of a sealed slot, and look at the values that it logged."""
        report = event.report
        if not report.warnings and all(map(isfinite, report.logs.values())):
            return []
        found = dict(report.warnings)
        for name, value in report.logs.items():
            if not isfinite(value):
                found[NOT_FINITE] = f"{name} is {value}"
                break
        worker = self._members.name(event.worker)
        return [fact for topic, text in found.items() for fact in self._add(topic, _whole(topic, text, report, worker))]

    def worker_joined(self, event: WorkerJoined) -> list[Output]:
        """Warn if this worker computes with another kind of machine than an earlier one (rule 12)."""
        member = self._members.members[event.node]
        other = other_kind(self._members, "worker", member.name, member.fingerprint)
        return [] if other is None else self._add(UNEQUAL_WORKERS, workers_text(member, other))

    def server_joined(self, event: ServerJoined) -> list[Output]:
        """Warn if this server computes with another kind of machine than an earlier one (rule 12)."""
        member = self._members.members[event.node]
        other = other_kind(self._members, "server", member.name, member.fingerprint)
        return [] if other is None else self._add(UNEQUAL_SERVERS, servers_text(member, other))

    @property
    def unequal(self) -> str:
        """What unequal machines mean for the bits of this job; "" if they are all equal."""
        return "; ".join(self.texts[topic] for topic in (UNEQUAL_WORKERS, UNEQUAL_SERVERS) if topic in self.texts)

    def warn(self, sender: NodeId, message: Warn) -> list[Output]:
        """Take a warning that a worker sends outside of its turns."""
        return [*self._add(message.topic, message.text), Send(sender, Ok(message.req))]

    def found(self, event: WarningFound) -> list[Output]:
        """Take the warning of another machine."""
        return self._add(event.topic, event.text)

    def _add(self, topic: str, text: str) -> list[Output]:
        if topic in self.texts:
            return []
        self.texts[topic] = text
        return [WarningFact(topic, text)]


def _whole(topic: str, text: str, report: Sealed, worker: str) -> str:
    """The text that the user sees: numbers that are not finite are found in a slot."""
    if topic != NOT_FINITE:
        return text
    return (
        f"{text} at step {report.step}, slot {report.slot} ({worker}). The training goes on, and later slots are not "
        "named: look at the samples of this slot and at the learning rate, or clip gradients "
        "(job.prepare(..., clip_norm=1.0))"
    )
