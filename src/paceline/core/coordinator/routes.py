"""The machines of a coordinator, which of them handles each message, and which of them get each event.

This is the whole wiring: a new machine is made in `make_machines`, and listed in `Machines.in_order`, in `routes` and
in `subscribers`. Order matters: it is the order in which a commit, a loss or a rewind passes through the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.coordinator import events as on
from paceline.core.coordinator.adoption import Adoption
from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.attendance import Attendance
from paceline.core.coordinator.bad_records import BadRecords
from paceline.core.coordinator.checkpoints import Checkpoints
from paceline.core.coordinator.claims import Claims
from paceline.core.coordinator.commits import Commits
from paceline.core.coordinator.copy_contents import CopyContents
from paceline.core.coordinator.data_checks import DataChecks
from paceline.core.coordinator.data_waits import DataWaits
from paceline.core.coordinator.decisions import Decisions
from paceline.core.coordinator.groups import Groups
from paceline.core.coordinator.heartbeats import Heartbeats
from paceline.core.coordinator.job_identity import Identity
from paceline.core.coordinator.leasing import Leasing
from paceline.core.coordinator.live_dials import LiveDials
from paceline.core.coordinator.member_records import MemberRecords
from paceline.core.coordinator.membership import Membership
from paceline.core.coordinator.pins import Pins
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.reachability import Reachability
from paceline.core.coordinator.rebalance import Rebalance
from paceline.core.coordinator.requests import Requests
from paceline.core.coordinator.restart import Restart
from paceline.core.coordinator.rewind import Rewind
from paceline.core.coordinator.samplers import SamplerTable
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.validation import Validation
from paceline.core.coordinator.warnings import Warnings
from paceline.core.effects import History
from paceline.core.policies.base import Policy
from paceline.messages import (
    Beat,
    BeginPhase,
    Broken,
    Bye,
    Chained,
    Checkpoint,
    Claim,
    ClaimDone,
    CompareData,
    Copied,
    Declare,
    DeclarePolicy,
    Drain,
    Exited,
    Failed,
    GiveBack,
    Hashed,
    HostLost,
    LeaveOut,
    Meet,
    Message,
    NotLoaded,
    PlacementRequest,
    Position,
    Prepare,
    Reachable,
    Ready,
    Receipt,
    Register,
    SamplerBeat,
    Saved,
    SaveNow,
    Scale,
    SetDials,
    Stop,
    Summed,
    Turn,
    Unreachable,
    Warn,
)

Handler = Callable[..., list[on.Output]]


class Machine(Protocol):
    """A part of the coordinator that owns some of its facts."""

    def restore(self, history: History) -> list[on.Output]:
        """Take over the durable facts that earlier coordinators wrote."""

    def reset(self, position: Position | None) -> list[on.Output]:
        """Return to `position` (None: the beginning of the job), from which a new incarnation continues."""


@dataclass(frozen=True, slots=True)
class Machines:
    """All machines of a coordinator."""

    identity: Identity
    membership: Membership
    attendance: Attendance
    placement: BlockPlacement
    rebalance: Rebalance
    reachability: Reachability
    commits: Commits
    pins: Pins
    validation: Validation
    claims: Claims
    requests: Requests
    segments: Segments
    live_dials: LiveDials
    decisions: Decisions
    checkpoints: Checkpoints
    copy_contents: CopyContents
    leasing: Leasing
    adoption: Adoption
    restart: Restart
    rewind: Rewind
    heartbeats: Heartbeats
    warnings: Warnings
    data_checks: DataChecks
    bad_records: BadRecords
    groups: Groups
    member_records: MemberRecords
    samplers: SamplerTable
    data_waits: DataWaits

    @property
    def in_order(self) -> tuple[Machine, ...]:
        """All machines, in the order in which they are restored and reset: each after those that it reads then."""
        return (
            self.rewind,
            self.identity,
            self.membership,
            self.attendance,
            self.placement,
            self.rebalance,
            self.reachability,
            self.commits,
            self.pins,
            self.validation,
            self.claims,
            self.requests,
            self.segments,
            self.live_dials,
            self.decisions,
            self.checkpoints,
            self.copy_contents,
            self.leasing,
            self.adoption,
            self.restart,
            self.heartbeats,
            self.warnings,
            self.data_checks,
            self.bad_records,
            self.groups,
            self.member_records,
            self.samplers,
            self.data_waits,
        )


def make_machines(
    tables: Tables,
    checkpoints: Sequence[Checkpoint],
    policies: Sequence[Policy],
    *,
    wasted_slots: int,
    lost_workers: int,
    earlier_s: float,
) -> Machines:
    """The machines over `tables`, with the complete `checkpoints` and the counts of earlier coordinators."""
    claims, requests, pins = Claims(), Requests(), Pins(tables)
    validation, segments = Validation(tables, pins), Segments(tables, policies)
    keeper = Checkpoints(tables, claims, checkpoints)
    placement = BlockPlacement(tables, segments)
    commits = Commits(tables, segments, keeper)
    samplers = SamplerTable(tables, segments)
    membership = Membership(tables, segments, requests, lost_workers)
    live_dials = LiveDials(tables, segments)
    return Machines(
        identity=tables.identity,
        membership=membership,
        attendance=tables.attendance,
        placement=placement,
        rebalance=Rebalance(tables, placement, keeper),
        reachability=Reachability(tables, placement),
        commits=commits,
        pins=pins,
        validation=validation,
        claims=claims,
        requests=requests,
        segments=segments,
        live_dials=live_dials,
        decisions=Decisions(tables, segments, live_dials, policies, earlier_s),
        checkpoints=keeper,
        copy_contents=CopyContents(tables),
        leasing=Leasing(tables, segments, validation, wasted_slots),
        adoption=Adoption(tables, segments),
        restart=Restart(tables, segments, commits, placement, membership),
        rewind=Rewind(tables, segments, keeper),
        heartbeats=Heartbeats(tables, segments, commits, placement),
        warnings=Warnings(tables),
        data_checks=DataChecks(tables),
        bad_records=BadRecords(tables),
        groups=Groups(tables, segments, placement),
        member_records=MemberRecords(tables),
        samplers=samplers,
        data_waits=DataWaits(tables, samplers),
    )


def open_routes(m: Machines) -> dict[type[Message], Handler]:
    """The handlers of messages that a process may send without being a member."""
    return {
        Register: m.membership.register,
        Beat: m.heartbeats.beat,
        Exited: m.membership.exited,
        HostLost: m.membership.host_lost,
        Failed: m.membership.failed,
        Stop: m.segments.stop,
        SetDials: m.live_dials.set,
        Scale: m.membership.scale,
        Drain: m.membership.drain,
        SaveNow: m.checkpoints.save_now,
        SamplerBeat: m.samplers.beat,
    }


def member_routes(m: Machines) -> dict[type[Message], Handler]:
    """The handlers of messages that only members may send."""
    return {
        Turn: m.leasing.turn,
        GiveBack: m.leasing.give_back,
        Ready: m.commits.ready,
        Receipt: m.commits.receipt,
        Summed: m.leasing.summed,
        Prepare: m.identity.prepare,
        Declare: m.validation.declare,
        DeclarePolicy: m.decisions.declare,
        CompareData: m.data_checks.compare,
        LeaveOut: m.bad_records.leave_out,
        BeginPhase: m.segments.begin,
        Claim: m.claims.claim,
        ClaimDone: m.claims.done,
        Warn: m.warnings.warn,
        Bye: m.membership.bye,
        PlacementRequest: m.placement.where,
        Copied: m.placement.copied,
        Unreachable: m.reachability.unreachable,
        Reachable: m.reachability.reachable,
        Saved: m.checkpoints.saved,
        Chained: m.checkpoints.chained,
        Hashed: m.copy_contents.hashed,
        NotLoaded: m.rewind.not_loaded,
        Meet: m.groups.meet,
        Broken: m.groups.broken,
    }


Subscribers = dict[type[on.Event], tuple[Callable[[Any], list[on.Output]], ...]]


def subscribers(m: Machines) -> Subscribers:
    """The methods that get each event, in order."""
    return _of_members(m) | _of_slots(m) | _of_blocks(m)


def _of_members(m: Machines) -> Subscribers:
    return {
        on.JobFailed: (m.identity.fail,),
        on.Admitted: (m.membership.admit,),
        on.ServerJoined: (
            m.member_records.joined,
            m.warnings.server_joined,
            m.rebalance.server_joined,
            m.restart.server_joined,
            m.placement.server_joined,
        ),
        on.WorkerJoined: (
            m.member_records.joined,
            m.warnings.worker_joined,
            m.validation.worker_joined,
            m.attendance.worker_joined,
            m.adoption.worker_joined,
            m.placement.worker_joined,
            m.samplers.worker_joined,
        ),
        on.Evicted: (m.membership.evict,),
        on.MembersRemoved: (
            m.member_records.removed,
            m.requests.members_removed,
            m.heartbeats.members_removed,
            m.reachability.servers_removed,
            m.placement.members_removed,
            m.restart.members_removed,
        ),
        on.WorkersGone: (
            m.claims.workers_gone,
            m.reachability.workers_gone,
            m.attendance.workers_gone,
            m.leasing.workers_gone,
            m.validation.workers_gone,
            m.pins.workers_gone,
            m.data_waits.workers_gone,
            m.leasing.offer_freed,
        ),
        on.WarningFound: (m.warnings.found,),
        on.WorkerRewound: (m.membership.send_back,),
        on.ModelAgreed: (m.placement.model_agreed,),
        on.SamplersWanted: (m.samplers.samplers_wanted,),
        on.ServersWanted: (m.rebalance.servers_wanted, m.placement.servers_wanted),
    }


def _of_slots(m: Machines) -> Subscribers:
    return {
        on.WorkFreed: (m.leasing.offer_freed,),
        on.LeaseHeld: (m.adoption.adopt,),
        on.SlotSealed: (m.warnings.sealed, m.data_waits.sealed, m.commits.sealed),
        on.SlotReported: (m.leasing.slot_reported,),
        on.SlotsSummed: (m.leasing.slots_summed,),
        on.SlotEvaluated: (m.validation.evaluated,),
        on.TurnReported: (m.leasing.turn_reported,),
        on.StepNews: (m.commits.step_news,),
        on.StepCommitted: (
            m.checkpoints.begin,
            m.commits.announce,
            m.pins.committed,
            m.leasing.committed,
            m.validation.committed,
            m.segments.committed,
            m.decisions.committed,
            m.live_dials.committed,
            m.checkpoints.hold,
            m.rebalance.committed,
            m.leasing.offer_freed,
        ),
        on.StepsDropped: (m.leasing.steps_dropped, m.commits.steps_dropped),
        on.PhaseEnded: (m.pins.phase_ended, m.validation.phase_ended),
        on.AttendanceChanged: (m.pins.attendance_changed,),
        on.RoundEnded: (m.pins.round_ended, m.decisions.round_ended, m.checkpoints.kept.round_ended),
    }


def _of_blocks(m: Machines) -> Subscribers:
    return {
        on.PlacementDecided: (
            m.checkpoints.void,
            m.copy_contents.void,
            m.commits.void,
            m.groups.void,
            m.leasing.void,
            m.validation.void,
            m.placement.enact,
            m.reachability.placement_changed,
            m.restart.placement_changed,
            m.leasing.offer_freed,
        ),
        on.BlocksPlaced: (m.heartbeats.blocks_placed,),
        on.BlocksMayMove: (m.rebalance.blocks_may_move,),
        on.WorkersCutOff: (m.leasing.cut_off,),
        on.CopiesDiffer: (m.placement.copies_differ,),
        on.BlocksLost: (m.rewind.blocks_lost,),
        on.IncarnationBegan: (m.rewind.send_back, m.placement.incarnation_began),
        on.VersionsKept: (m.validation.versions_kept, m.pins.versions_kept, m.decisions.versions_kept),
        on.AllHeard: (m.restart.all_heard,),
    }


def ticks(m: Machines) -> tuple[Callable[[], list[on.Output]], ...]:
    """What the machines do when time passes, in order."""
    return (
        m.membership.tick,
        m.live_dials.tick,
        m.decisions.tick,
        m.leasing.requeue_suspects,
        m.pins.release_phases,
        m.reachability.evict_silent,
        m.reachability.probe,
        m.reachability.recheck,
        m.reachability.fail_if_stuck,
        m.rebalance.tick,
        m.checkpoints.tick,
        m.leasing.tick,
        m.groups.tick,
        m.samplers.tick,
        m.data_waits.tick,
    )
