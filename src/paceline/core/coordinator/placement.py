"""Blocks change hands while the job goes on: failover, copies that leave and join, servers that come and go.

Any change is a new placement epoch and a barrier at the last committed version: it is durable first, and what was not
committed under the old one is void. Rule 5 of the design; what should be where is decided in `planning`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from paceline.core.coordinator.books import Books
from paceline.core.coordinator.checkpoints import Keeping
from paceline.core.coordinator.gate import Gate
from paceline.core.coordinator.membership import Member
from paceline.core.coordinator.reachability import BELIEVED_S, UNTIL_TRIED_S, Reach
from paceline.core.effects import Effect, PlacementFact, Send
from paceline.core.placement_plan import Backups, Joining, Owners, Servers, joins, normal, promote, settle
from paceline.messages import Copied, CopyOver, Probe, Reachable, Revoke, Unreachable
from paceline.types import NodeId, Placement, name_of

DIFFERENT = "are not as they should be"
"""How the reason ends for which copies are made again that should be equal to their primaries'."""

_PATIENCE_S = 3.0  # for a lost server to be replaced, before its copies are made elsewhere
_AGAIN_S = 0.25
_STALLED_S = 3.0  # without a commit, after which blocks change hands although work is lost with that
_OVERDUE_S = 10.0  # of waiting for a moment at which nothing is lost
_LONGEST_S = 60.0  # pause between two commits that says something about the next
_OTHERS_S = 0.4  # after the first report of a server, in which others may say that it is the one who is cut off
_TRY_S = 1.0
_GRUDGE_S = 60.0  # in which a worker that made the job give up one server is not heard about another
_BEATS = 5  # in a row that may be lost on their way
_GIVE_UP_S = 300.0  # in which no worker reaches a server whose blocks nobody else has


class Placing:
    """Makes placements out of the one there is; the roster makes the first of an incarnation."""

    def __init__(self, books: Books, keeping: Keeping) -> None:
        """`lose` is told whom nobody can reach, `gone` who is not waited for any longer; the roster sets both."""
        self.lose: Callable[[Member, str], list[Effect]] = lambda member, why: []
        self.gone: Callable[[NodeId], list[Effect]] = lambda node: []
        self.reach = Reach()
        self._job = books
        self._keeping = keeping
        self._look_at: float | None = None
        self._committed_at: float | None = None
        self._pause_s = 0.0
        self._stuck_since: float | None = None
        self._next_try = 0.0
        self._blamers: frozenset[NodeId] = frozenset()
        self._blamed_at = 0.0

    # ------------------------------------------------------------ one placement follows another

    def _change(
        self,
        owners: Owners,
        backups: Backups,
        joining: Joining = (),
        *,
        why: str,
        failover: bool = False,
        planned: bool = False,
    ) -> list[Effect]:
        """A new epoch: durable, then what is not committed is void, then everyone is told."""
        job = self._job
        assert job.placement is not None
        job.epoch += 1
        placement = Placement(job.epoch, owners, {}, backups, joining)
        known = job.placement.addresses | {m.node: m.address or "" for m in job.members.by_role("server")}
        addresses = {node: known.get(node, "") for node in placement.holders}
        placement = msgspec.structs.replace(placement, addresses=addresses)
        job.failovers += failover
        effects: list[Effect] = [job.fact(PlacementFact(placement, why, failover, planned))]
        effects += self._void()
        job.place(placement)
        for server in job.members.by_role("server"):
            effects += [Send(server.node, job.assignment()), Send(server.node, job.plan())]
        self._note_cut_off()
        for node in sorted(job.awaited.difference(job.holders)):
            effects += self.gone(node)
        return effects + job.serve()

    def _void(self) -> list[Effect]:
        """Receipts, readiness, seals and leases of the old placement count no more: those slots are leased again."""
        job = self._job
        effects = self._keeping.void()
        job.gate = Gate()
        job.suspects.clear()
        held, sealed = job.leases.restart(job.watermark.low, initialised=job.version >= 0, now=job.now)
        job.totals.wasted_slots += sealed
        # Whoever waits to read what it was to compute on asks again; whoever computes is refused by the servers.
        effects += [Send(lease.worker, Revoke(job.generation, lease.fence)) for lease in held]
        effects += [Send(node, Revoke(job.generation, fence)) for node, fence in job.evaluations.held()]
        return effects

    def _alive(self) -> frozenset[NodeId]:
        return frozenset(m.node for m in self._job.members.by_role("server"))

    def lost(self, member: Member, why: str) -> list[Effect] | None:
        """A server that had copies is gone: others are promoted, sets shrink. None if blocks are lost with it."""
        job = self._job
        self.reach.forget(member.node)
        if job.placement is None or member.node not in job.holders:
            return []
        found = promote(job.blocks, job.placement, member.node, self._alive())
        if found is None:
            return None
        self.look(_PATIENCE_S if len(self._alive()) < job.wanted_servers else 0.0)
        failover = member.node in job.placement.owners
        return self._change(*found, why=f"{member.name} is lost ({why})", failover=failover)

    # ------------------------------------------------------------ copies

    def copied(self, sender: NodeId, message: Copied) -> list[Effect]:
        """A server has caught up: it is a member of these in-sync sets, durably, before it is told so."""
        job = self._job
        if not job.is_current(message.incarnation, message.epoch) or job.placement is None:
            return []
        over = Send(sender, CopyOver(job.generation, message.incarnation, message.epoch, message.source))
        old = job.placement
        backups = list(old.backups or [()] * len(old.owners))
        left: list[tuple[NodeId, tuple[int, ...]]] = []
        for server, blocks in old.joining:
            done = [b for b in blocks if server == sender and old.owners[b] == message.source]
            for block in done:
                backups[block] = (*backups[block], sender)
            rest = tuple(b for b in blocks if b not in done)
            if rest:
                left.append((server, rest))
        joining = tuple(left)
        if joining == old.joining:
            return [over]
        job.place(msgspec.structs.replace(old, backups=normal(backups), joining=joining))
        assert job.placement is not None
        effects: list[Effect] = [
            job.fact(PlacementFact(job.placement, f"{name_of(sender)} has its copies", planned=True)),
            over,
        ]
        self.look(0.0)
        return effects

    # ------------------------------------------------------------ who cannot be reached

    def unreachable(self, sender: NodeId, message: Unreachable) -> list[Effect]:
        """`sender` gets no answer from a server: that one leaves its sets, or gets no more work from this worker."""
        job, peer = self._job, message.peer
        reporter, member = job.members.members.get(sender), job.members.members.get(peer)
        if job.placement is None or reporter is None or member is None or message.epoch != job.placement.epoch:
            return []
        if reporter.role == "server":
            said_s = self.reach.report(sender, peer, job.now, UNTIL_TRIED_S)
            return self._part(reporter, member) if said_s >= _OTHERS_S else []
        said_s = self.reach.report(sender, peer, job.now, BELIEVED_S)
        self._note_cut_off()
        return self._blame(member) if peer in job.owners and said_s >= _OTHERS_S else []

    def _blame(self, server: Member) -> list[Effect]:
        """A primary that most workers cannot reach is lost, if it can be spared.

        Workers who reach none of several primaries are cut off themselves. So are those who complained before, of
        one that was lost for it, and go on about the next.
        """
        job, cuts = self._job, self.reach.cuts(self._job.now)
        if job.now - self._blamed_at > _GRUDGE_S:
            self._blamers = frozenset()
        without = frozenset(
            m.node
            for m in job.members.by_role("worker")
            if not m.left
            and (m.node, server.node) in cuts
            and (len(job.owners) == 1 or any((m.node, owner) not in cuts for owner in job.owners))
        )
        if without and without <= self._blamers:
            self._blamed_at = job.now
            return []
        if 2 * len(without) <= job.members.num_workers or not self.can_spare(server.node):
            return []
        self._blamers, self._blamed_at = without | self._blamers, job.now
        return self.lose(server, f"{len(without)} of {job.members.num_workers} workers cannot reach it")

    def reachable(self, sender: NodeId, message: Reachable) -> list[Effect]:
        """It does get an answer."""
        member = self._job.members.members.get(sender)
        wary = member is not None and member.role == "server"
        self.reach.restore(sender, message.peer, self._job.now, wary=wary)
        self._note_cut_off()
        self.look(0.0)
        return self._job.serve()

    def can_spare(self, server: NodeId) -> bool:
        """Whether others have every block of `server`."""
        job = self._job
        assert job.placement is not None
        return promote(job.blocks, job.placement, server, self._alive()) is not None

    def _part(self, primary: Member, member: Member) -> list[Effect]:
        """A primary cannot reach one of its copies: the set shrinks before anything is committed without it.

        The other one's sets are left as they are: it may be the one that is lost, and then this one takes over. Of
        whom more complain than of the other, that one is lost, if it can be spared.
        """
        old = self._job.placement
        assert old is not None
        of_primary, of_member = (self._complaints(node) for node in (primary.node, member.node))
        if of_primary > of_member and self.can_spare(primary.node):
            return self.lose(primary, f"{of_primary} others cannot reach it")
        blocks = frozenset(b for b, owner in enumerate(old.owners) if owner == primary.node)
        return self._shrink({member.node: blocks}, f"{primary.name} cannot reach {member.name}")

    def differ(self, found: dict[NodeId, frozenset[int]]) -> list[Effect]:
        """Copies that are not what their primaries have leave the sets, and are made again."""
        return self._shrink(found, f"copies on {' and '.join(sorted(map(name_of, found)))} {DIFFERENT}")

    def _shrink(self, without: dict[NodeId, frozenset[int]], why: str) -> list[Effect]:
        """These servers leave the sets of these blocks; copies that are being made are begun again later."""
        old = self._job.placement
        assert old is not None
        backups = [tuple(m for m in members if b not in without.get(m, ())) for b, members in enumerate(old.backups)]
        joining = tuple(j for j in old.joining if j[0] not in without)
        if normal(backups) == old.backups and joining == old.joining:
            return []
        self.look(_AGAIN_S)
        return self._change(old.owners, normal(backups), why=why)

    def _complaints(self, node: NodeId) -> int:
        return sum(peer == node for _, peer in self.reach.cuts(self._job.now))

    def _try(self) -> list[Effect]:
        """Have servers see whether they reach again whom they could not."""
        job = self._job
        if job.now < self._next_try:
            return []
        self._next_try = job.now + _TRY_S
        servers = {m.node: m.address or "" for m in job.members.by_role("server")}
        pairs = [(node, peer) for node, peer in self.reach.untried(job.now) if node in servers and peer in servers]
        for node, peer in pairs:
            self.reach.report(node, peer, job.now, UNTIL_TRIED_S)  # not whole before it says so
        return [Send(node, Probe(job.generation, peer, servers[peer])) for node, peer in pairs]

    def _note_cut_off(self) -> None:
        """Workers that cannot reach some primary get no leases."""
        job = self._job
        job.cut_off = {node for node, peer in self.reach.cuts(job.now) if peer in job.owners}
        for node in job.cut_off:
            job.leases.release(node)

    # ------------------------------------------------------------ what should be elsewhere

    def look(self, after_s: float) -> None:
        """Something has changed: see after a while whether blocks should be elsewhere."""
        at = self._job.now + after_s
        self._look_at = at if self._look_at is None else min(at, self._look_at)

    def tick(self) -> list[Effect]:
        """Plan, if there is reason to and nothing else is under way."""
        job = self._job
        effects = self._lose_silent() + self._try()
        if job.cut_off:
            before = set(job.cut_off)
            self._note_cut_off()
            effects += job.serve() if job.cut_off != before else []
        effects += self._stuck()
        return effects + self._go_on() if self._may_void() else effects

    def committed(self, saving: bool) -> list[Effect]:
        """A step was committed just now, and in lock-step nothing of the next is computed: the time for a change.

        It waits while a version is being saved: the servers would be told to drop what they have written of it.
        """
        now = self._job.now
        if self._committed_at is not None:
            self._pause_s = max(min(now - self._committed_at, _LONGEST_S), 0.7 * self._pause_s)
        self._committed_at = now
        busy = saving or not self._keeping.settled
        return [] if busy and not self._is_overdue() else self._go_on()

    def _may_void(self) -> bool:
        """Whether blocks may change hands between two commits: nothing is lost, or there may be none without that."""
        job = self._job
        if job.cut_off or not len(job.leases) or self._is_overdue():
            return True
        since = max(self._committed_at or 0.0, self._look_at or 0.0)
        return job.now - since > max(_STALLED_S, 3 * self._pause_s)

    def _is_overdue(self) -> bool:
        """Whether the best moment has been waited for long enough: there may be none."""
        return self._look_at is not None and self._job.now - self._look_at > max(_OVERDUE_S, 3 * self._pause_s)

    def _go_on(self) -> list[Effect]:
        job = self._job
        if self._look_at is None or job.now < self._look_at:
            return []
        placement = job.placement
        if placement is None or job.awaited or job.version < 0 or job.failure is not None or placement.joining:
            self._look_at = job.now + _AGAIN_S
            return []
        if job.pins.older(job.version):  # a new copy would not have what is to be read; that may change any moment
            return []
        self._look_at = self.reach.next_end(job.now)
        return self._plan(placement)

    def _stuck(self) -> list[Effect]:
        """Nobody can compute anything, since no worker reaches some server that cannot be spared: not for ever."""
        job = self._job
        if not job.cut_off:
            self._stuck_since = None
            return []
        workers = {m.node for m in job.members.by_role("worker") if not m.left}
        if not workers or not workers <= job.cut_off or job.failure is not None:
            self._stuck_since = None
            return []
        self._stuck_since = job.now if self._stuck_since is None else self._stuck_since
        if job.now - self._stuck_since < _GIVE_UP_S:
            return []
        away = sorted({name_of(peer) for node, peer in self.reach.cuts(job.now) if node in workers})
        return job.fail("lost", f"no worker has reached {' and '.join(away)} for {_GIVE_UP_S:.0f} s", "")

    def _lose_silent(self) -> list[Effect]:
        """A server that others can stand in for is waited for no longer than one that somebody cannot reach.

        They must have been heard since: they may be as silent, and it is the one that will be back.
        """
        job = self._job
        if job.placement is None or not job.placement.backups or job.failure is not None:
            return []
        limit_s = max(job.spec.reach_s, _BEATS * job.spec.heartbeat_s)
        for member in job.members.by_role("server"):
            silent_s = job.now - member.seen
            if silent_s <= limit_s or member.node not in job.holders or member.node in job.awaited:
                continue
            heard = {m.node for m in job.members.by_role("server") if m.seen > member.seen + limit_s / 2}
            sets = [job.placement.copies(block) for block in range(len(job.placement.owners))]
            if heard and all(heard & set(copies) for copies in sets if member.node in copies):
                return self.lose(member, f"silent for {silent_s:.1f} s")
        return []

    def _plan(self, placement: Placement) -> list[Effect]:
        job = self._job
        servers = self._servers()
        owners, backups = settle(job.blocks, placement, servers)
        settled = msgspec.structs.replace(placement, owners=owners, backups=backups)
        joining = joins(job.blocks, settled, servers)
        if (owners, backups) == (placement.owners, placement.backups) and not joining:
            return []
        why = "copies are made" if joining else "blocks are balanced"
        return self._change(owners, backups, joining, why=why, planned=True)

    def _servers(self) -> Servers:
        job = self._job
        leaving = job.draining
        servers = [m.node for m in job.members.by_role("server")]
        workers = {m.node for m in job.members.by_role("worker")}
        cuts = self.reach.cuts(job.now)
        return Servers(
            staying=tuple(s for s in servers if s not in leaving),
            leaving=leaving,
            replicas=job.spec.replicas,
            barred=frozenset(pair for pair in cuts if pair[0] not in workers),
            unfit=frozenset(peer for node, peer in cuts if node in workers),
        )
