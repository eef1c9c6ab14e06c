"""The incarnation and placement of this server, the generation that it obeys, and the placement to enter next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.core.effects import Send
from paceline.core.server.backups import Backups
from paceline.core.server.block_groups import BlockGroup
from paceline.errors import CheckpointError
from paceline.messages import Assign, CopyPart, NotLoaded, Replicate
from paceline.types import COORDINATOR, NodeId

_MAX_POSTPONED = 256  # at most this many requests are kept of primaries that are in a newer placement

Postponed = tuple[NodeId, Replicate | CopyPart, Sequence[object]]


class Assignment:
    """The incarnation and placement of one server.

    `entered` is False until the blocks of the first placement are open, and loaded if they come from a checkpoint.
    `waiting` is a placement that this server enters once it has applied the version which that placement names. `group`
    are the members with which it reduces; if they are `near`, every worker pushes to all of them. `others` are blocks
    that it holds as its own and that another member saves.
    """

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.generation = 0
        self.incarnation = 0
        self.epoch = 0
        self.at = (0, 0)
        """The incarnation and the placement epoch."""
        self.one_attempt = False
        self.hold = 0
        self.entered = False
        self.waiting: Assign | None = None
        self.addresses: Mapping[NodeId, str] = {}
        self.group: tuple[NodeId, ...] = ()
        self.near = False
        self.others: frozenset[int] = frozenset()
        self._not_loaded: NotLoaded | None = None
        self._postponed: dict[tuple[NodeId, int], tuple[Replicate | CopyPart, Sequence[object]]] = {}

    # ------------------------------------------------------------ generations

    def admits(self, generation: int) -> bool:
        """Whether to obey an order of `generation`. Once a higher generation is heard, lower ones are refused."""
        if generation < self.generation:
            return False
        self.generation = generation
        return True

    def hear(self, generation: int) -> None:
        """Note the generation in a message that is not an order."""
        self.generation = max(self.generation, generation)

    # ------------------------------------------------------------ placements

    def enter(self, message: Assign) -> None:
        """Begin another incarnation. `load` must follow."""
        self.incarnation, self.epoch = self.at = message.incarnation, message.placement.epoch
        self.count_by(message)
        self.entered = False
        self.waiting = self._not_loaded = None

    def load(self, message: Assign, own: BlockGroup, backups: Backups) -> bool:
        """Open all blocks of the placement, and load its checkpoint if it names one; False if that cannot be read."""
        backups.open(message, own)
        if message.folder:
            try:
                for group in (own, *backups.synced_groups):
                    if group.blocks:
                        group.load(message.folder, message.version)
            except CheckpointError as error:
                self._not_loaded = NotLoaded(self.incarnation, self.epoch, message.folder, str(error))
                return False
        self.entered = True
        return True

    def move(self, message: Assign) -> None:
        """Begin another placement of the same incarnation."""
        self.epoch = message.placement.epoch
        self.at = self.incarnation, self.epoch
        self.waiting = None

    def count_by(self, message: Assign) -> None:
        """Count attempts as `message` says, from now on."""
        self.one_attempt, self.hold = message.one_attempt, message.hold
        placement = message.placement
        self.group = placement.group if self.node in placement.group else ()
        self.near = placement.near and bool(self.group)
        owned = placement.owned(self.node) if self.group else ()
        self.others = frozenset(range(len(placement.owners))).difference(owned) if self.group else frozenset()

    def reach(self, addresses: Mapping[NodeId, str]) -> None:
        """Note the addresses of the servers of the placement."""
        self.addresses = addresses

    def wait(self, message: Assign) -> bool:
        """Remember `message` as the placement to enter next; False if the same placement was remembered already."""
        known, self.waiting = self.waiting, message
        return known is None or known.placement != message.placement

    def repeat(self) -> list[Send]:
        """The report that a checkpoint could not be loaded, until another incarnation begins."""
        return [] if self._not_loaded is None else [Send(COORDINATOR, self._not_loaded)]

    # ------------------------------------------------------------ requests of a newer placement

    def postpone(self, sender: NodeId, message: Replicate | CopyPart, payload: Sequence[object]) -> None:
        """Keep a primary's request until this server has entered the primary's placement."""
        if len(self._postponed) < _MAX_POSTPONED:
            self._postponed[sender, message.req] = message, payload

    def take_postponed(self) -> list[Postponed]:
        """Take out all postponed requests, in the order of their arrival."""
        postponed, self._postponed = self._postponed, {}
        return [(sender, message, payload) for (sender, _), (message, payload) in postponed.items()]
