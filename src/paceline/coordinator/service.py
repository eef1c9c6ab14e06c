"""The service of a coordinator process: connects the core with the port, the durable log and the clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paceline.checkpoint.manifest import folder_name
from paceline.checkpoint.storage import Storage
from paceline.config.dials import ClusterSpec
from paceline.config.live import in_words
from paceline.coordinator.checkpoint_completion import CheckpointCompletion, HeldPlace, complete_checkpoints
from paceline.coordinator.digest import DigestReader
from paceline.coordinator.log_parts import TIP, Reached
from paceline.coordinator.marks import Marks
from paceline.coordinator.reader import LogReader
from paceline.coordinator.status import status_of, summary_of, unfinished
from paceline.coordinator.store import LogStore
from paceline.coordinator.timeline import Timeline
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import (
    Complete,
    Drop,
    Effect,
    FactRow,
    IncarnationFact,
    PlacementFact,
    SegmentFact,
    Send,
    Write,
)
from paceline.core.running_time import RunningTime
from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import (
    Finish,
    Follow,
    Following,
    Message,
    PullReply,
    Saved,
    Shutdown,
    StatusReply,
    StatusRequest,
    Summary,
)
from paceline.messages.status import Status
from paceline.telemetry import tracing
from paceline.transport.base import Event, Frame, PeerDown, PeerUp, Port, Received
from paceline.types import Commit, DialChange, NodeId

logger = logging.getLogger(__name__)

_SETTLE_S = 30.0  # seconds that the end of a run waits for its last checkpoint
_NOTE_S = 1.0  # seconds between two writes of `_Notes` to the log
_NOTES = "notes"
_FOR_SERVICE = frozenset((StatusRequest, Follow, Finish, Shutdown, PullReply, Saved))
"""Messages that the service handles, or looks at; the others are for the core alone."""


class _Notes(msgspec.Struct, frozen=True):
    """What earlier coordinators of this run have counted, for the summary: no decision depends on it.

    `at` is the time of day at which `seconds` were right: that of the last commit until then.
    """

    seconds: float = 0.0
    wasted_slots: int = 0
    lost_workers: int = 0
    failover_s: float = 0.0
    at: float | None = None


def _run_before(notes: _Notes, *, is_resumed: bool) -> float:
    """For how many seconds the job has run before; the time between its end and a resume does not count."""
    return notes.seconds + (0.0 if notes.at is None or is_resumed else max(0.0, time.time() - notes.at))


def _noted(path: Path | None) -> tuple[_Notes, Reached]:
    """What the log at `path` holds besides rows: notes for the summary, and how far a storage has its rows."""
    if path is None:
        return _Notes(), Reached()
    with LogReader(path) as reader:
        notes, tip = reader.get(_NOTES), reader.get(TIP)
    return (
        _Notes() if notes is None else msgspec.json.decode(notes, type=_Notes),
        Reached() if tip is None else msgspec.json.decode(tip, type=Reached),
    )


class CoordinatorService:
    """Feeds events to the core and carries out its effects, in their order. Driven by `on_event` and `on_tick`.

    It continues the job from the log and from the complete checkpoints in `storage`. `close` ends its background
    thread. `place` is the place of `storage` if that is outside of the run directory.
    """

    def __init__(
        self,
        port: Port,
        spec: ClusterSpec,
        log: LogStore,
        *,
        run: str = "",
        storage: Storage | None = None,
        start: int = 1,
        place: HeldPlace | None = None,
    ) -> None:
        self.port = port
        self.spec = spec
        self.log = log
        self.run = run
        self._start = start
        history = log.history()
        checkpoints = [] if storage is None else complete_checkpoints(storage, spec.resume)
        path = None if str(log.path) == ":memory:" else log.path
        notes, on_storage = _noted(path)
        self.core = CoordinatorCore(
            spec,
            log.generation,
            history,
            checkpoints,
            wasted_slots=notes.wasted_slots,
            lost_workers=notes.lost_workers,
            earlier_s=_run_before(notes, is_resumed=spec.resume is not None),
        )
        self.ended: str | None = None
        reached = max([history.version, *(row.version for row in history.facts)])
        if spec.resume is not None and notes.at is not None:
            notes = msgspec.structs.replace(notes, at=time.time())  # the time in which nothing ran does not count
            log.put(_NOTES, msgspec.json.encode(notes).decode())
        began = None if notes.at is None else time.monotonic() - max(0.0, time.time() - notes.at)
        self.timeline = Timeline(notes.seconds, reached, began, failover_s=notes.failover_s)
        self._running = RunningTime()
        self.publish: Callable[[Status], None] | None = None
        self._next_publish = 0.0
        self._marks = Marks(log, self.core, time.monotonic())
        self._completion = CheckpointCompletion(storage, path, log.generation, place, on_storage)
        self._digest: DigestReader | None = None
        self._finishing: list[tuple[NodeId, int]] = []
        self._settle_by, self._asked_last = 0.0, False
        self._next_note = 0.0
        self._down: set[NodeId] = set()
        self._summary: bytes | None = None
        self._carry_out(self.core.start(self._running.value))

    def close(self) -> None:
        """End the background thread that completes checkpoints."""
        self._completion.close()

    # ------------------------------------------------------------ events

    def on_event(self, event: Event, now: float) -> None:
        """Handle one event of the port."""
        if type(event) is Received:
            if not tracing.is_on():
                self._received(event.peer, event.message, event.frames, now)
                return
            with tracing.span(f"handle {type(event.message).__name__}", peer=event.peer):
                self._received(event.peer, event.message, event.frames, now)
            return
        match event:
            case PeerDown(peer=peer, reason=reason):
                # A broken connection does not mean that the peer is dead: it may connect again. The engine reports
                # the exit of a process, and missing heartbeats show that a process is silent. If the connections to all
                # processes of one host are broken, that host is lost: see `on_tick`.
                logger.debug("session with %s ended: %s", peer, reason)
                self._down.add(peer)
            case PeerUp(peer=peer):
                self._down.discard(peer)

    def _received(self, peer: NodeId, message: Message, frames: Sequence[Frame], now: float) -> None:
        if type(message) not in _FOR_SERVICE:
            effects = self.core.handle(peer, message, frames, self._running.advance(now))
            if effects and self._carry_out(effects):
                self._note(effects, now)
            return
        match message:
            case StatusRequest(req=req):
                self._reply(peer, StatusReply(req, msgspec.json.encode(self.status(now))))
            case Follow(req=req):
                self._reply(peer, self._following(req, knows_model=message.knows_model, now=now))
            case Finish(req=req):
                self._finish(peer, req, now)
            case Shutdown(reason=reason):
                self.ended = reason
            case PullReply():
                if self._digest is not None:
                    for send in self._digest.received(peer, message, frames, now):
                        self._reply(send.to, send.message)
                    self._conclude(now)
            case Saved():
                effects = self.core.handle(peer, message, frames, self._running.advance(now))
                self._carry_out(effects)
                self._note(effects, now)
                if message.problem:
                    self._sweep(message)

    def _note(self, effects: Sequence[Effect], now: float) -> None:
        """Tell the timeline when the commits, failovers and rewinds among the effects happened."""
        moved = False
        for effect in effects:
            if type(effect) is not Write:
                continue
            if type(effect.row) is Commit:
                moved = True
                continue
            match effect.row:
                case FactRow(fact=PlacementFact(failover=True)):
                    self.timeline.failed_over(now)
                    tracing.instant("failover", version=self.core.version)
                case FactRow(fact=IncarnationFact()):
                    moved = True
        if moved:
            log = self.core.tables.log
            self.timeline.committed(log.version, log.samples, now)
            if tracing.is_on():
                tracing.instant("commit", version=log.version, step=log.watermark.low)

    def _sweep(self, message: Saved) -> None:
        """Remove the checkpoint that a server could not write, if the core no longer waits for that checkpoint."""
        at = message.incarnation, message.version
        if at != (self.core.incarnation, self.core.machines.checkpoints.saving):
            self._completion.sweep(folder_name(*at, self.spec.term))

    def on_tick(self, now: float) -> None:
        """Do what is due at `now`. The caller first handles all events that the port has.

        Raises:
            DeposedError: another run has taken over the place of the checkpoints: this coordinator must end.
        """
        running = self._running.advance(now)
        while (kept := self._completion.poll()) is not None:
            folder, problem = kept
            if not problem:
                self.timeline.saved(now)
                if self._completion.reached.tip is not None:
                    self.log.put(TIP, msgspec.json.encode(self._completion.reached).decode())
            self._carry_out(self.core.completed(folder, problem, running))
        if self._completion.deposed is not None:
            raise self._completion.deposed
        effects = self.core.tick(running)
        self._carry_out(effects)
        self._note(effects, now)
        if self._down and not self._finishing:
            self._down &= self.core.tables.members.members.keys()
            effects = self.core.sessions_lost(self._down, running)
            self._carry_out(effects)
            self._note(effects, now)
        if now >= self._next_note and self.timeline.last is not None:
            self._next_note = now + _NOTE_S
            totals, timeline = self.core.totals, self.timeline
            lost = totals.wasted_slots, totals.lost_workers
            notes = _Notes(timeline.seconds, *lost, timeline.failover_s, time.time() - (now - self.timeline.last))
            self.log.put(_NOTES, msgspec.json.encode(notes).decode())
        self._marks.tick(now)
        if self.publish is not None and now >= self._next_publish:
            self._next_publish = now + _NOTE_S
            self.publish(self.status(now))
        self._conclude(now)
        self._let_members_go(now)

    # ------------------------------------------------------------ effects

    def _carry_out(self, effects: Sequence[Effect]) -> bool:
        """Carry out `effects`; returns whether there were rows of the log among them."""
        rows = [effect for effect in effects if type(effect) is Write]
        if rows:
            # All rows of one event are durable, in one transaction, before a message of that event is sent.
            with tracing.span("sqlite", rows=len(rows)):
                self.log.write(rows)
            self._note_changes(rows)
        for effect in effects:
            if type(effect) is Send:
                self._reply(effect.to, effect.message)
            elif type(effect) is Complete:
                self._completion.complete(effect)
            elif type(effect) is Drop:
                self._completion.drop(effect.folders)
        return bool(rows)

    def _note_changes(self, rows: Sequence[Write]) -> None:
        """Tell the timeline each change of placement and each rewind, with its reason."""
        for fact in [write.row.fact for write in rows if type(write.row) is FactRow]:
            match fact:
                case PlacementFact(why=why) if why:
                    kind = "failover" if fact.failover else "planned" if fact.planned else "shrink"
                    self.timeline.changed(kind, why, self.core.tables.clock.now)
                case SegmentFact(step, _, change, reason) if change != DialChange():
                    self.timeline.changed(
                        "set", f"from step {step}: {in_words(change)} ({reason})", self.core.tables.clock.now
                    )
                case IncarnationFact(why=why):
                    self.timeline.changed("rewind", why, self.core.tables.clock.now)

    def _reply(self, to: NodeId, message: Message) -> None:
        try:
            self.port.send(to, message)
        except (PeerUnknownError, PeerLostError) as error:
            logger.debug("cannot send a message to %s: %s", to, error)

    # ------------------------------------------------------------ reports

    def status(self, now: float) -> Status:
        """What `paceline status` and the progress line show."""
        return status_of(self.core, self.timeline, now, self.run, self._start)

    def _following(self, req: int, *, knows_model: bool, now: float) -> Following:
        """Where a reader finds the newest committed version."""
        core, last = self.core, self.timeline.last
        model = None if knows_model else core.tables.identity.model
        ago = -1.0 if last is None else max(0.0, now - last)
        return Following(req, core.generation, core.incarnation, core.version, ago, core.placement, model)

    def _finish(self, peer: NodeId, req: int, now: float) -> None:
        if self._summary is not None:
            self._reply(peer, Summary(req, self._summary))
            return
        if not self._finishing:
            self._settle_by, self._asked_last = now + _SETTLE_S, False
        self._finishing.append((peer, req))
        self._conclude(now)

    def _conclude(self, now: float) -> None:
        """Answer the requests for the summary once the last checkpoint is complete and the digest is read."""
        if not self._finishing:
            return
        core = self.core
        going_on = unfinished(core, self.timeline)
        readable = core.failure is None and core.version >= 0 and not (going_on and core.tables.incarnation.rewinds)
        if readable and not (self._is_settled(now) and self._read_digest(now)):
            return
        digest = None if self._digest is None else self._digest.value
        late = f"the last checkpoint was not complete after {_SETTLE_S:.0f} s" * (readable and not core.settled)
        summary = msgspec.json.encode(summary_of(core, self.timeline, self.run, digest, late))
        self._marks.tick(now, last=True)
        if not going_on:
            self._summary = summary
            self.log.put("summary", summary.decode())
        for peer, req in self._finishing:
            self._reply(peer, Summary(req, summary))
        self._finishing.clear()
        self._digest = None

    def _let_members_go(self, now: float) -> None:
        """End the members, which workers host, once the last state is saved and its digest is known."""
        groups = self.core.machines.groups
        if not groups.is_idle or groups.dissolved:
            self._settle_by = now + _SETTLE_S if not self._finishing and not groups.dissolved else self._settle_by
            return
        if self._is_settled(now) and self._read_digest(now):
            self._carry_out(self.core.dissolve(self._running.advance(now)))

    def _is_settled(self, now: float) -> bool:
        """Ask the core once for the last checkpoint; return whether it has ended or the wait for it is over."""
        if self.core.settled and not self._asked_last:
            self._asked_last = True
            self._carry_out(self.core.finish(self._running.advance(now)))
        return self.core.settled or now >= self._settle_by

    def _read_digest(self, now: float) -> bool:
        """Whether the digest of the current version is known. If not, start to read it, unless a read is under way."""
        core = self.core
        if self._digest is not None and self._digest.stale(core, now):
            self._digest = None
        if self._digest is None and core.placement is not None:
            self._digest = DigestReader(core, now)
            for send in self._digest.start():
                self._reply(send.to, send.message)
        return self._digest is not None and self._digest.value is not None
