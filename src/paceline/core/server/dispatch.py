"""A parameter server's protocol: one table routes each message to the machine that owns what it changes.

Events in (`handle`, `tick`), sends out; arithmetic is behind `BlockStore`. Rules 1 to 7 and 11 of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from paceline.config.dials import REACH_S
from paceline.core.effects import Send
from paceline.core.message_parts import PART_NBYTES
from paceline.core.running_time import RunningTime
from paceline.core.server.ahead import Ahead
from paceline.core.server.assignment import Assignment
from paceline.core.server.attempts import Attempts
from paceline.core.server.backups import Backups
from paceline.core.server.block_groups import BlockGroup, shares
from paceline.core.server.block_store import BlockStore
from paceline.core.server.contents import Contents
from paceline.core.server.contributions import Contributions
from paceline.core.server.group_reach import GroupReach
from paceline.core.server.held_versions import HeldVersions
from paceline.core.server.plan import KnownPlan
from paceline.core.server.probes import Probes
from paceline.core.server.pulls import Pulls
from paceline.core.server.refusals import Refusals
from paceline.core.server.replication import Replication, copy_targets
from paceline.core.server.saving import Saving
from paceline.core.window import Watermark
from paceline.messages import (
    Abort,
    Assign,
    Beat,
    BeatAck,
    Choose,
    Close,
    Committed,
    CopyOver,
    CopyPart,
    CopyPartAck,
    Echo,
    Echoed,
    Failed,
    Message,
    Plan,
    Probe,
    Pull,
    Push,
    Register,
    Replicate,
    Replicated,
    SaveOver,
    Unpin,
    Welcome,
)
from paceline.types import COORDINATOR, NodeId, SavedFile

_OF_INCARNATION = frozenset({Plan, Unpin, SaveOver, CopyOver})
"""Orders that name an incarnation; a server that is in another incarnation ignores them."""

_CONTRADICTION = (
    "two attempts of step {step} disagree on the hyper-parameters of the optimizer: change them by a prepared "
    "scheduler, or as a function of job.step only"
)

_Handler = Callable[[NodeId, Any, Sequence[object], float], list[Send]]
_OrderHandler = Callable[[Any, float], list[Send] | None]


class ServerCore:
    """One server, composed of machines that own its state. The state changes only by the methods of this class.

    `own` are the blocks that this server is the primary of; `backups` are copies of other servers' blocks.
    """

    def __init__(
        self,
        node: NodeId,
        make: Callable[[], BlockStore],
        *,
        heartbeat_s: float = 0.5,
        part_nbytes: int = PART_NBYTES,
        reach_s: float = REACH_S,
    ) -> None:
        """`make` returns an empty store. It is called once now, and once for each primary whose blocks are copied.

        Large messages are sent in parts of about `part_nbytes`.
        """
        self.node, self.heartbeat_s = node, heartbeat_s
        self.failed: Abort | None = None
        self.own = BlockGroup(make())
        self.assignment = Assignment(node)
        self.plan = KnownPlan()
        self.refusals = Refusals()
        self.backups = Backups(node, make)
        self.saving = Saving(self.assignment, self.own)
        self.versions = HeldVersions(self.plan, self.own, self.backups)
        self.replication = Replication(self.own.store, reach_s, part_nbytes)
        self.contents = Contents(self.assignment, self.own, self.backups, self.replication)
        self._running = RunningTime()
        self.ahead = Ahead(self.versions, self.own)
        self.attempts = Attempts(
            self.assignment,
            self.plan,
            self.versions,
            self.own,
            self.ahead,
            self.replication,
            self.refusals,
            self._running,
        )
        self.contributions = Contributions(self.assignment, self.plan, self.versions, self.own, self.attempts)
        self.group_reach = GroupReach(self.assignment, self.replication, self._running)
        self.probes = Probes(self.group_reach)
        self.pulls = Pulls(self.assignment, self.versions, self.ahead, self.own, self.refusals, part_nbytes)
        self._next_beat = 0.0
        self._routes, self._orders = self._handlers(), self._order_handlers()

    def _handlers(self) -> Mapping[type[Message], _Handler]:
        """The handler of each type of message that is no order: from workers, servers, and the coordinator."""
        return {
            Push: self.attempts.push,
            Pull: self.pulls.pull,
            Replicate: self._receive_copy,
            CopyPart: self._receive_copy,
            Replicated: self._copy_answered,
            CopyPartAck: self._copy_answered,
            Echo: lambda sender, message, payload, now: [Send(sender, Echoed())],
            Echoed: lambda sender, message, payload, now: self.probes.answered(sender),
            BeatAck: self._hear,
            Welcome: self._hear,
        }

    def _order_handlers(self) -> Mapping[type[Message], _OrderHandler]:
        """The handler of each type of order from the coordinator."""
        return {
            Committed: self._commit,
            Choose: self.attempts.choose,
            Close: self.contributions.close,
            Assign: self._assign,
            Plan: self._take_plan,
            Unpin: lambda message, now: self.versions.release(message.version),
            CopyOver: self._note_copy,
            SaveOver: lambda message, now: self.saving.end(message.version),
            Probe: self.probes.begin,
            Abort: self._abort,
        }

    # ------------------------------------------------------------ what a shell or a test may ask

    @property
    def peers(self) -> dict[NodeId, str]:
        """The servers that this server must be able to reach now, with their addresses."""
        addresses = self.assignment.addresses
        return {**self.probes.peers, **{to: addresses.get(to, "") for to in self.replication.peers}}

    # ------------------------------------------------------------ events

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Send]:
        """Handle one message. A wrong request is answered with the rule that it breaks; nothing raises."""
        kind = type(message)
        handler = self._routes.get(kind)
        out = self._order(kind, message, now) if handler is None else handler(sender, message, payload, now)
        return self.contributions.add_all(now) + out if self.assignment.near else out

    def _order(self, kind: type[Message], order: Any, now: float) -> list[Send]:
        """Handle an order of the coordinator; refuse it if a message of a higher generation came before."""
        handler = self._orders.get(kind)
        if handler is None:
            return []
        if not self.assignment.admits(order.generation):
            self.refusals.count("generation")
            return []
        if kind in _OF_INCARNATION and order.incarnation != self.assignment.incarnation:
            return []
        return handler(order, now) or []

    def proceed(self) -> list[Send]:
        """Do the work that may follow the sends of `handle`: compute the next version, and answer pulls with it."""
        return self.pulls.made_ahead() if self.ahead.is_due and self.ahead.make() else []

    def tick(self, now: float) -> list[Send]:
        """Send a heartbeat when one is due, and repeat what the coordinator or a copy has not answered yet."""
        ran = self._running.advance(now)
        if now < self._next_beat:
            return []
        self.probes.tick(now)
        out = [self._beat(now), *self.backups.report(*self.assignment.at)]
        if self.replication.targets:
            out += self.replication.repeat(ran)
        out += self.attempts.repeat() + self.contributions.repeat()
        return out + self.saving.repeat() + self.assignment.repeat()

    def introduce(self, introduction: Register) -> Register:
        """The first message to a coordinator: `introduction` with the versions of this server.

        The next tick repeats the reports that no coordinator has answered.
        """
        self._next_beat = 0.0
        return msgspec.structs.replace(
            introduction,
            incarnation=self.assignment.incarnation,
            epoch=self.assignment.epoch,
            applied=self.versions.reported,
            kept=tuple(sorted(self.versions.kept)),
        )

    def saved(self, version: int, files: tuple[SavedFile, ...], problem: str) -> list[Send]:
        """Report that the shell has written the frozen version, or the `problem` that it had."""
        return self.saving.written(version, files, problem)

    def forget(self, peer: NodeId) -> None:
        """Drop the parked pulls of `peer`: the session with it has ended."""
        self.pulls.drop(peer)

    def greet(self, peer: NodeId, now: float) -> list[Send]:
        """Repeat at once what server `peer` has not answered: the session with it is up (again)."""
        return self.probes.greet(peer) + self.replication.greet(peer, self._running.advance(now))

    def _beat(self, now: float) -> Send:
        self._next_beat = now + self.heartbeat_s
        kept = tuple(sorted(self.versions.kept))
        return Send(COORDINATOR, Beat(self.node, *self.assignment.at, self.versions.reported, self.plan.revision, kept))

    # ------------------------------------------------------------ generation, plan, end

    def _hear(self, _: NodeId, message: BeatAck | Welcome, payload: Sequence[object], now: float) -> list[Send]:
        self.assignment.hear(message.generation)
        if isinstance(message, Welcome) and message.generation == self.assignment.generation:
            self.heartbeat_s = message.heartbeat_s
            self.replication.set_reach(message.reach_s)
        return []

    def _take_plan(self, message: Plan, now: float) -> None:
        if self.attempts.drop_outdated(message):
            self.ahead.void()
        self.backups.drop_outdated(lambda steps: self.plan.outdates(message, steps))
        self.plan.take(message)
        self._drop_beyond_end()

    def _note_copy(self, message: CopyOver, now: float) -> None:
        if message.epoch == self.assignment.epoch:
            self.backups.note(message.source)

    def _abort(self, message: Abort, now: float) -> None:
        self.failed = message

    # ------------------------------------------------------------ copies

    def _receive_copy(
        self, sender: NodeId, message: Replicate | CopyPart, payload: Sequence[object], now: float
    ) -> list[Send]:
        """Store a sum or a part of a copy, which a primary sends."""
        there, here = (message.incarnation, message.epoch), self.assignment.at
        if there > here or not self.assignment.entered:
            self.assignment.postpone(sender, message, payload)
            return []
        if there < here:
            return self.refusals.refuse(sender, message.req, "epoch", f"blocks are placed by epoch {here[1]}")
        if isinstance(message, Replicate):
            out = self.backups.replicate(sender, message, payload, over=self.versions.is_over(message.step))
        else:
            out = self.backups.receive(sender, message, payload)
        return out + self.backups.drain(self.versions.kept, *here)

    def _copy_answered(
        self, sender: NodeId, message: Replicated | CopyPartAck, payload: Sequence[object], now: float
    ) -> list[Send]:
        """Note that a copy has received a part; report a step as ready when all copies have its sum."""
        out, ready = self.replication.answered(sender, message, self._running.advance(now))
        return out if ready is None else self.attempts.replicated(ready) + out

    # ------------------------------------------------------------ commits

    def _commit(self, message: Committed, now: float) -> list[Send]:
        """Apply `message` if it is the next commit of the log; ignore a repeated commit, and report a gap."""
        commit, assignment, versions = message.commit, self.assignment, self.versions
        if commit.incarnation != assignment.incarnation or commit.version <= versions.applied:
            if message.save and (commit.incarnation, commit.version) == (assignment.incarnation, versions.applied):
                self.saving.begin(versions.applied)
                return self._report_copies()
            return []
        if assignment.entered and not versions.follows_log:
            return []
        waiting = assignment.waiting
        awaited = waiting is not None and commit.version <= waiting.at
        expected = commit.version == versions.applied + 1 and assignment.entered
        if not expected or (message.epoch != assignment.epoch and not awaited):
            # The beat shows the gap once; the coordinator then repeats the commits that are missing.
            return [self._beat(now)] if versions.notice_gap(assignment.epoch) else []
        if self.ahead.contradicts(commit):
            return [Send(COORDINATOR, Failed(1, "script", _CONTRADICTION.format(step=commit.step)))]
        if message.keep and versions.applied >= 0 and versions.applied not in versions.kept:
            versions.keep(versions.applied)
        if self.own.blocks:
            self.attempts.apply(commit)
        if self.backups:
            self.backups.apply(commit)
        versions.advance(commit)
        if message.save:
            self.saving.begin(commit.version)
        if commit.pin:
            versions.keep(commit.version)
        self._drop_beyond_end()
        out = self.pulls.committed(commit) + self.attempts.resume(now)
        if self.backups.joining:
            out += self.backups.drain(versions.kept, *assignment.at)
        if message.save:
            out += self._report_copies()
        if waiting is not None and versions.applied >= waiting.at:
            out += self._assign(waiting, now)
        return out

    def _report_copies(self) -> list[Send]:
        """Report what this server has of the applied version, which is being saved, for comparison with other holders.

        The hash chains follow now; the content is hashed in the background.
        """
        self.contents.begin(self.versions.applied)
        return self.contents.report_chains(self.versions.applied)

    def _drop_beyond_end(self) -> None:
        """Drop all sums once the last version of a stopped job is applied: no other step will be committed."""
        if 0 <= self.plan.final <= self.versions.applied:
            self.backups.drop_sums()
            self.attempts.drop_all()
            self.ahead.void()

    # ------------------------------------------------------------ placements

    def _assign(self, message: Assign, now: float) -> list[Send]:
        """Enter an incarnation, or another placement of the same one. No other message does this."""
        there, ran = (message.incarnation, message.placement.epoch), self._running.advance(now)
        assignment, versions = self.assignment, self.versions
        if there <= assignment.at:
            return []
        if message.incarnation == assignment.incarnation and assignment.entered:
            synced, _ = shares(message.placement, self.node)
            if synced and versions.applied < message.at:  # commits of the old placement are applied first
                return [self._beat(now)] if assignment.wait(message) else []
            self.replication.void(ran)
            self._move(message, keep=bool(synced))
        else:
            self.replication.void(ran)
            if not self._enter(message):
                return assignment.repeat()
        assignment.reach(message.placement.addresses)
        self.replication.restart(copy_targets(message.placement, self.node), *there, self.own.blocks)
        out = [self._beat(now), *self.pulls.entered()]
        out += self.replication.begin(versions.applied, self.own.chains, ran)
        for sender, request, payload in assignment.take_postponed():
            out += self._receive_copy(sender, request, payload, now)
        return out

    def _enter(self, message: Assign) -> bool:
        """Forget everything and begin an incarnation from its checkpoint; False if the checkpoint cannot be loaded."""
        self.assignment.enter(message)
        self.plan.reset()
        self.versions.reset()
        self.attempts.reset()
        self.ahead.void()
        self.saving.void()
        self.contents.void()
        self.pulls.void()
        if not self.assignment.load(message, self.own, self.backups):
            return False
        if not (self.own.blocks or self.backups.synced):
            self.versions.wait_for_blocks(message)
            return True
        assert message.at <= message.version, "the placement names a version that this server never had"
        self.versions.follow()
        if message.folder:
            self.versions.restore(message.version, Watermark(message.watermark, message.above))
        return True

    def _move(self, message: Assign, *, keep: bool) -> None:
        """Begin another placement of the same incarnation: drop all sums, keep the committed versions.

        With `keep`, the placement gives this server blocks that it already has.
        """
        self.assignment.move(message)
        self.saving.void()
        self.contents.void()
        self.backups.drop_sums()
        self.attempts.drop_all()
        self.ahead.void()
        self.assignment.count_by(message)  # after the sums, which were made by the old count, are dropped
        versions = self.versions
        if keep and versions.applied >= 0:
            assert versions.applied == message.at, f"version {versions.applied} is here, {message.at} was the last"
            versions.move(self.backups.regroup(message, self.own))
        else:
            self.backups.open(message, self.own)
            if not keep:
                versions.wait_for_blocks(message)
        self.pulls.void()
