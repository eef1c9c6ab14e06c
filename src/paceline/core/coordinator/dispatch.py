"""The coordinator's dispatcher: gives each message to one machine, and each event to the machines that subscribe to it.

Events in (`handle`, `tick`, `lost`), effects out, in the order in which the shell must carry them out: a `Write` is
durable before the `Send`s behind it leave. `routes` says which machine handles what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.all_tables import make_tables
from paceline.core.coordinator.events import IncarnationBegan, Output
from paceline.core.coordinator.routes import make_machines, member_routes, open_routes, subscribers, ticks
from paceline.core.effects import Effect, Fact, FactRow, History, Send, Write
from paceline.core.policies.base import Policy
from paceline.core.policies.registry import default_policies
from paceline.core.schedule import Schedule
from paceline.core.window import Watermark
from paceline.errors import MismatchError
from paceline.messages import (
    Abort,
    Checkpoint,
    EvalGrant,
    GiveBack,
    Grant,
    Message,
    PhaseOver,
    PlacementRequest,
    Refused,
    Turn,
)
from paceline.types import NodeId, Placement

_REPEATABLE = frozenset((GiveBack, PlacementRequest))
"""Requests of which a peer may have several under way at once; handling one twice changes nothing."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts that the summary of a run shows."""

    samples: float
    skipped_slots: int
    wasted_slots: int
    max_staleness: int
    max_lag: int
    lost_workers: int


class CoordinatorCore:
    """The coordinator without its I/O. Changed only by its methods for events: from `start` to `completed`.

    Callers may read `tables` and `machines`, for the status and in tests, but must not change them.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        generation: int,
        history: History | None = None,
        checkpoints: Sequence[Checkpoint] = (),
        *,
        policies: Sequence[Policy] | None = None,
        wasted_slots: int = 0,
        lost_workers: int = 0,
        earlier_s: float = 0.0,
    ) -> None:
        """`history` is what earlier coordinators of the run wrote; `checkpoints` are those that are complete.

        `policies` are those of `spec` unless given. Earlier coordinators have counted `wasted_slots` and
        `lost_workers`; the job has run for `earlier_s` under them.
        """
        self.spec = spec
        self.generation = generation
        self.tables = make_tables(spec, generation)
        self.machines = make_machines(
            self.tables,
            checkpoints,
            default_policies(spec) if policies is None else policies,
            wasted_slots=wasted_slots,
            lost_workers=lost_workers,
            earlier_s=earlier_s,
        )
        self._clock = self.tables.clock
        self._identity = self.tables.identity
        self._members = self.tables.members
        self._requests = self.machines.requests
        self._end = self._settle if spec.collective else self._requests.answered  # what every event ends with
        self._open_routes = open_routes(self.machines)
        self._member_routes = {
            kind: (handler, "req" in kind.__struct_fields__ and kind not in _REPEATABLE)
            for kind, handler in member_routes(self.machines).items()
        }
        self._subscribers = subscribers(self.machines)
        self._ticks = ticks(self.machines)
        if history is not None and history.facts:
            for machine in self.machines.in_order:
                self._expand(
                    machine.restore(history), []
                )  # effects are dropped: peers get the state when they register

    # ------------------------------------------------------------ events in, effects out

    def start(self, now: float) -> list[Effect]:
        """Start the coordinator; the caller calls this once, before the first event."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        if self.spec.resume is not None and self.tables.identity.job is not None:
            self.machines.membership.forget_drains()
            self._expand(self.machines.rewind.resume(self.spec.resume), effects)
            if self.spec.allow_changes:
                self._expand(self.machines.data_checks.forget(), effects)
        return effects

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Effect]:
        """Handle one message. A request is carried out once; if it is repeated, it gets the same answer."""
        self._clock.set(now)
        effects: list[Effect] = []
        output = self._route(sender, message, now)
        if output:
            self._expand(output, effects)
            self._end(effects)
        return effects

    def _route(self, sender: NodeId, message: Message, now: float) -> list[Output]:
        kind = type(message)
        route = self._member_routes.get(kind)
        if route is None:
            open_to_all = self._open_routes.get(kind)
            return [] if open_to_all is None else open_to_all(sender, message)
        if not self._members.seen(sender, now):
            unknown: int | None = getattr(message, "req", None)
            return [] if unknown is None else [Send(sender, Refused(unknown, "unknown", "register first"))]
        if self._identity.failure is not None:
            return [Send(sender, self._identity.failure)]
        handler, once = route
        if once and not self._requests.note(sender, message, req := message.req):  # type: ignore[attr-defined]
            again = self._requests.reply(sender, message, req)
            ended = self.machines.leasing.early.ended(sender, message) if isinstance(message, Turn) else []
            if again is None:
                return ended
            if not self._is_void(again.message):
                return [again, *ended]
            # The lease in that answer has ended: the worker needs a new answer.
        try:
            return handler(sender, message)
        except MismatchError as error:
            return self.machines.membership.refuse(sender, str(error))

    def _is_void(self, reply: Message) -> bool:
        """Whether an earlier answer is a lease that has ended, or is of another placement."""
        match reply:
            case Grant():
                is_held = reply.fence in self.tables.leases.live
            case EvalGrant():
                is_held = reply.fence in self.tables.rounds
            case PhaseOver():
                is_held = True
            case _:
                return False
        return not is_held or not self.tables.placed.is_current(reply.incarnation, reply.epoch)

    def _expand(self, output: Iterable[Output], effects: list[Effect]) -> None:
        """Append the effects of `output` to `effects`; each event is replaced by what its subscribers return.

        Every class of events has subscribers (`routes.subscribers`): an item without any is a fact or an effect.
        """
        for item in output:
            kind = type(item)
            if kind is Send or kind is Write:
                effects.append(item)  # type: ignore[arg-type]
                continue
            heard_by = self._subscribers.get(kind)  # type: ignore[arg-type]
            if heard_by is not None:
                if kind is IncarnationBegan:
                    self._reset(item, effects)  # type: ignore[arg-type]
                for hear in heard_by:
                    if told := hear(item):
                        self._expand(told, effects)
            elif isinstance(item, Fact):
                tables = self.tables
                effects.append(Write(FactRow(tables.incarnation.number, tables.log.version, item)))
            else:
                effects.append(item)  # type: ignore[arg-type]

    def _settle(self, effects: list[Effect]) -> None:
        """Close the steps of a group whose slots are all leased now; then remember the answers among `effects`."""
        self._expand(self.machines.groups.settle(), effects)
        self._requests.answered(effects)

    def dissolve(self, now: float) -> list[Effect]:
        """End the members of a job that is over and saved."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        self._expand(self.machines.groups.dissolve(), effects)
        return effects

    def _reset(self, event: IncarnationBegan, effects: list[Effect]) -> None:
        for machine in self.machines.in_order:
            self._expand(machine.reset(event.position), effects)

    def tick(self, now: float) -> list[Effect]:
        """Act on the passage of time. `now` is running time; the caller has handled all received messages before."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        for tick in self._ticks:
            self._expand(tick(), effects)
        self._end(effects)
        return effects

    def lost(self, node: NodeId, reason: str, now: float) -> list[Effect]:
        """Evict `node`: the transport lost the session with it."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        self._expand(self.machines.membership.session_lost(node, reason), effects)
        self._end(effects)
        return effects

    def sessions_lost(self, nodes: Collection[NodeId], now: float) -> list[Effect]:
        """Evict a host all of whose processes are among `nodes`, which have no session with the coordinator now."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        self._expand(self.machines.reachability.sessions_lost(nodes), effects)
        self._end(effects)
        return effects

    def finish(self, now: float) -> list[Effect]:
        """Begin a checkpoint of the last version, unless there is one or one is under way: the job is over."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        self._expand(self.machines.checkpoints.finish(), effects)
        return effects

    def completed(self, folder: str, problem: str, now: float) -> list[Effect]:
        """Note that the checkpoint in `folder` is complete, or that it is not, because of `problem`."""
        self.tables.clock.set(now)
        effects: list[Effect] = []
        self._expand(self.machines.checkpoints.completed(folder, problem), effects)
        return effects

    # ------------------------------------------------------------ what is read most

    @property
    def version(self) -> int:
        """The last committed version; -1 before the initial weights are."""
        return self.tables.log.version

    @property
    def watermark(self) -> Watermark:
        """The committed steps."""
        return self.tables.log.watermark

    @property
    def incarnation(self) -> int:
        """The number of the incarnation."""
        return self.tables.incarnation.number

    @property
    def placement(self) -> Placement | None:
        """Where the blocks are; None while they are not placed."""
        return self.tables.placed.placement

    @property
    def schedule(self) -> Schedule:
        """All segments so far."""
        return self.tables.phases.schedule

    @property
    def state(self) -> str:
        """The state of the job: waiting, running, finished or failed."""
        return self.machines.segments.state

    @property
    def failure(self) -> Abort | None:
        """Why the job failed."""
        return self.tables.identity.failure

    @property
    def settled(self) -> bool:
        """Whether no checkpoint is under way."""
        return self.machines.checkpoints.settled

    @property
    def totals(self) -> Totals:
        """The counts that the summary of a run shows."""
        log = self.tables.log
        wasted, lost = self.machines.leasing.wasted_slots, self.machines.membership.lost_workers
        return Totals(log.samples, log.skipped_slots, wasted, log.max_staleness, log.max_lag, lost)
