"""Groups of members that sum together: the closing of steps, the rendezvous, broken groups, and members that leave.

Rules 17 and 18. The group is a placement epoch: whatever goes wrong in it ends with the next one.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.apart import apart
from paceline.core.coordinator.events import (
    Evicted,
    JobFailed,
    Output,
    PlacementDecided,
)
from paceline.core.coordinator.holders import holders
from paceline.core.coordinator.mates import mate, mates
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.tables.members import Member
from paceline.core.effects import History, Send
from paceline.messages import Broken, Close, Meet, Met, Position, Shutdown
from paceline.types import INIT_STEP, NodeId, Placement, SlotId

_PATIENCE_S = 0.5  # seconds from the report of a broken group to the next one: the loss of a member may be heard first
_LIMIT = 8  # the job fails when this many groups in a row broke without a commit
_TRIES = 3  # so many groups may break in a row before those who joined last take no part any more
_MEMBERS_S = 30.0  # seconds that the first group waits for wanted members, and a member for the worker of its process
_REPEAT_S = 1.0  # seconds between two repetitions of a closing


class Groups:
    """Closes steps when all their slots are leased, and begins the next epoch when a group cannot go on.

    `dissolved`: the job is over, its last state is saved, and the members end.
    """

    def __init__(self, tables: Tables, segments: Segments, placement: BlockPlacement) -> None:
        self.dissolved = False
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._placed = tables.placed
        self._reducers = tables.reducers
        self._reach = tables.reach
        self._segments = segments
        self._placement = placement
        self._closed: dict[int, Close] = {}
        self._repeat_at = 0.0
        self._broken_at: float | None = None
        self._reason = ""
        self._broken_groups = 0
        self._broken_after = -1
        self._short_since: float | None = None
        self._released: set[NodeId] = set()  # they end, unless they have not heard it: then they register again
        self._proven: frozenset[NodeId] = frozenset()  # the last group that has made a commit
        self._begun_at = -1  # the last version before the group of this epoch

    def restore(self, history: History) -> list[Output]:
        """Begin without closings: a restarted coordinator begins a new epoch."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Forget the closings of the incarnation that has ended."""
        self._begun_at = -1 if position is None else position.version
        self._forget()
        return []

    def void(self, event: PlacementDecided) -> list[Output]:
        """Forget the closings of the epoch that has ended; note whether its group has made a commit."""
        if self._log.version > self._begun_at:
            self._proven, self._begun_at = frozenset(self._group), self._log.version
        self._forget()
        return []

    def _forget(self) -> None:
        self._closed.clear()
        self._broken_at = None

    @property
    def _group(self) -> tuple[NodeId, ...]:
        placement = self._placed.placement
        return () if placement is None else placement.group

    # ------------------------------------------------------------ closing

    def settle(self) -> list[Output]:
        """Close the steps whose slots are all leased. The dispatcher calls this after every event.

        If a lease of a closed step has ended, members may have begun to sum its attempt: a new epoch begins.
        """
        placement = self._placed.placement
        if placement is None or not placement.group or self._incarnation.awaited or self._identity.failure is not None:
            return []
        live = self._leases.live
        for over in [step for step in self._closed if not self._segments.is_open(step)]:
            del self._closed[over]
        for closing in self._closed.values():
            for fence in closing.fences:
                if fence not in live:
                    return self._placement.regroup(f"a slot of step {closing.step} was given back after its closing")
        first = INIT_STEP if self._log.version < 0 else self._log.watermark.low
        out: list[Output] = []
        for step in (first, first + 1):
            if step not in self._closed and self._segments.is_open(step):
                out += self._close(step, placement)
        return out

    def _close(self, step: int, placement: Placement) -> list[Output]:
        live, slots = self._leases.live, self._phases.schedule.num_slots(step)
        if not live.is_leased(SlotId(step, slots - 1)):  # slots are leased in order: most calls end here
            return []
        leases = [live.of_slot(SlotId(step, index)) for index in range(slots)]
        if not all(leases):
            return []
        named = [found[0] for found in leases]
        members = tuple(mate(self._members, lease.worker) for lease in named)
        if not set(members) <= set(placement.group):
            return []
        closing = Close(
            self._identity.generation,
            self._incarnation.number,
            placement.epoch,
            step,
            tuple(lease.fence for lease in named),
            members,
            self._phases.schedule.revision_of(step),
        )
        self._closed[step] = closing
        self._repeat_at = self._clock.now + _REPEAT_S
        return [Send(node, closing) for node in placement.group]

    # ------------------------------------------------------------ the rendezvous

    def meet(self, sender: NodeId, message: Meet) -> list[Output]:
        """Hand a value of a member to the other members of its group."""
        if not self._placed.is_current(message.incarnation, message.epoch) or sender not in self._group:
            return []
        met = Met(self._identity.generation, message.incarnation, message.epoch, message.key, message.value)
        return [Send(node, met) for node in self._group if node != sender]

    def broken(self, sender: NodeId, message: Broken) -> list[Output]:
        """Note that a group cannot reduce any more; the next one begins a moment later."""
        current = self._placed.is_current(message.incarnation, message.epoch)
        if current and sender in self._group and self._broken_at is None:
            self._broken_at, self._reason = self._clock.now, message.reason
        return []

    # ------------------------------------------------------------ time passes

    def tick(self) -> list[Output]:
        """Begin the next epoch after a broken one, repeat closings, and let members go that the job can spare."""
        now = self._clock.now
        if self._identity.failure is not None or self._incarnation.awaited:
            return []
        if self._placed.placement is None:
            return self._begin(now)
        self._short_since = None
        if self._broken_at is not None and now - self._broken_at >= _PATIENCE_S:
            return self._next_group()
        out: list[Output] = []
        if self._closed and now >= self._repeat_at:
            self._repeat_at = now + _REPEAT_S
            out += [Send(node, closing) for closing in self._closed.values() for node in self._group]
        return out + self._release()

    def _begin(self, now: float) -> list[Output]:
        """Place the blocks if a change of dials allows it, or if members have not come for long: they join later."""
        if self._identity.spec.collective and (out := self._placement.place()):
            return out
        if not self._reducers.wanted or not self._hosted:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= _MEMBERS_S:
            return self._placement.place(short=True)
        return []

    def _next_group(self) -> list[Output]:
        if self._log.version > self._broken_after:  # the last group has worked
            self._broken_groups, self._broken_after = 0, self._log.version
        self._broken_groups += 1
        if self._broken_groups >= _TRIES and (newcomers := self._newcomers()):
            return self._part_with(newcomers)
        if self._broken_groups >= _LIMIT:
            names = " and ".join(self._members.name(node) for node in self._group)
            reason = (
                f"{names} cannot sum together ({self._reason}): check that these processes reach each other by TCP at "
                "any port, or use servers (--mode bsp)"
            )
            return [JobFailed("lost", reason)]
        return self._placement.regroup(f"the group broke: {self._reason}")

    def _newcomers(self) -> list[Member]:
        """The members that joined since a group has made a commit; none if no other member is left."""
        new = [node for node in self._group if node not in self._proven]
        known = self._members.members
        return [known[node] for node in new if node in known] if len(new) < len(self._group) else []

    def _part_with(self, newcomers: list[Member]) -> list[Output]:
        """Go on as before without members with whom no group has worked: they connect to the coordinator only."""
        stays = self._members.members[next(node for node in self._group if node in self._proven)]
        out: list[Output] = []
        for member in newcomers:
            self._reach.bar(member.node)
            out.append(apart(stays, member, f"{stays.name} and {member.name} cannot sum together ({self._reason})"))
        self._broken_at = None
        return [*out, *self._placement.part_with(*(m.node for m in newcomers), why=f"the group broke: {self._reason}")]

    # ------------------------------------------------------------ members that leave

    @property
    def _leaving(self) -> list[Member]:
        """The members in processes whose script has ended: they may leave."""
        return [m for m in self._hosted if m.node in self._released or self._is_over(m)]

    def _is_over(self, member: Member) -> bool:
        """Whether the script in the member's process has ended.

        Such a process may be known by its member alone, if it was lost and registers again. After version 0 it is of
        use, and does not hold up others.
        """
        workers = mates(self._members, member)
        alone = not workers and self._log.version < 0 and self._clock.now - member.joined > _MEMBERS_S
        return alone or any(worker.left for worker in workers)

    @property
    def _hosted(self) -> list[Member]:
        return holders(self._members, grouped=True) if self._identity.spec.collective else []

    def _release(self) -> list[Output]:
        """Let a member go whose script has ended, if other members have its blocks."""
        why = "its script has ended"
        for member in self._leaving:
            if self._may_go(member):
                self._released.add(member.node)
                return [Send(member.node, Shutdown(0, why)), Evicted((member,), why, left=True)]
        return []

    def _may_go(self, member: Member) -> bool:
        """Whether the job can spare `member`. Before version 0 it has nothing that others need, and makes no copies."""
        if member.node not in self._placed.holders or self._placement.can_spare(member.node):
            return True
        return self._log.version < 0 and len(self._leaving) < len(self._hosted)

    @property
    def is_idle(self) -> bool:
        """Whether all scripts have ended, and only the last state of the job, which members have, is to be saved."""
        phase = self._phases.open
        is_over = not self._members.num_workers and (phase is None or self._log.watermark.low >= phase.end)
        leaving = self._leaving if is_over and self._placed.placement is not None else []
        return len(leaving) == len(self._hosted) and any(m.node in self._placed.owners for m in leaving)

    def dissolve(self) -> list[Output]:
        """End all members: the last state is saved, and nobody computes any more."""
        self.dissolved = True
        self._placement.dissolve()
        return [Send(member.node, Shutdown(0, "the job is over")) for member in self._leaving]
