"""The samplers of a job: who is there, what they do, and what their scripts must know. Nothing here is durable.

Samplers are no members: they have no lease, and their loss is no event of the job. Workers learn from the coordinator
who they are; all else is between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, SamplersWanted, WorkerJoined
from paceline.core.coordinator.segments import Segments
from paceline.core.effects import History, Send
from paceline.messages import Abort, Position, SamplerBeat, SamplerNews, Samplers, SamplerWork
from paceline.types import NodeId


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler that was heard: start number `start` of `name`. `seen` is when it was heard last."""

    node: NodeId
    name: str
    start: int
    host: str
    address: str
    phase: int
    work: SamplerWork
    seen: float


class SamplerTable:
    """The samplers that are heard, by node id. Owns them, and the number that a user wants (None: as the run began)."""

    def __init__(self, tables: Tables, segments: Segments) -> None:
        self.wanted: int | None = None
        self.known: dict[NodeId, Sampler] = {}
        self._clock = tables.clock
        self._identity = tables.identity
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._rounds = tables.rounds
        self._segments = segments
        self._starts: dict[str, int] = {}

    def restore(self, history: History) -> list[Output]:
        """Do nothing: samplers report themselves."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: a sampler whose loop has begun again sees it in the next news."""
        return []

    def samplers_wanted(self, event: SamplersWanted) -> list[Output]:
        """Note how many samplers a user wants; the launcher reads it in the status."""
        if event.number >= 0:
            self.wanted = event.number
        return []

    def beat(self, sender: NodeId, beat: SamplerBeat) -> list[Output]:
        """A sampler shows that it lives, and gets the news of the job."""
        generation = self._identity.generation
        if beat.start < self._starts.get(beat.name, 0):
            return [Send(sender, Abort(generation, "lost", f"a later start of {beat.name} takes part"))]
        self._starts[beat.name] = beat.start
        is_new = sender not in self.known
        for node in [node for node, sampler in self.known.items() if sampler.name == beat.name and node != sender]:
            del self.known[node]
        self.known[sender] = Sampler(
            sender, beat.name, beat.start, beat.host, beat.address, beat.phase, beat.work, self._clock.now
        )
        return [Send(sender, self._news(beat)), *(self._tell_all() if is_new else ())]

    def worker_joined(self, event: WorkerJoined) -> list[Output]:
        """Tell a new worker who the samplers are."""
        return [Send(event.node, self._roster())] if self.known else []

    def tick(self) -> list[Output]:
        """Forget samplers that have been silent for as long as makes a member lost."""
        limit, now = self._members.timeout_s, self._clock.now
        silent = [node for node, sampler in self.known.items() if now - sampler.seen > limit]
        for node in silent:
            del self.known[node]
        return self._tell_all() if silent else []

    # ------------------------------------------------------------ what is told

    def _roster(self) -> Samplers:
        return Samplers(self._identity.generation, self._addresses())

    def _addresses(self) -> tuple[tuple[NodeId, str], ...]:
        return tuple(sorted((node, sampler.address) for node, sampler in self.known.items()))

    def _tell_all(self) -> list[Output]:
        roster = self._roster()
        return [Send(worker.node, roster) for worker in self._members.active_workers()]

    def _news(self, beat: SamplerBeat) -> SamplerNews:
        closed = [phase for phase in self._phases.phases if phase.end_version is not None]
        metrics = (closed[-1].metrics if closed else None) or self._rounds.metrics()
        latest = self._rounds.latest.get(beat.evaluation)
        low = self._log.watermark.low
        segments = self._phases.schedule.segments
        epoch = 0
        if segments:
            last = segments[-1]
            epoch = last.end_epoch if low >= last.end_step else self._phases.schedule.place(low).epoch
        return SamplerNews(
            beat.req,
            self._identity.generation,
            self._segments.state,
            len(closed),
            low,
            epoch,
            metrics,
            self._addresses(),
            None if latest is None else latest[1],
        )
