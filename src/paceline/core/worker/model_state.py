"""Which server has each block of the model, and which version of the blocks is in the worker's model."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.messages import EvalGrant, Grant, PhaseOver
from paceline.types import NodeId, Placement

_NONE: Mapping[int, int] = {}


class ModelState:
    """Placement and versions of the blocks, in one incarnation. Only its methods change it.

    `by_server` lists the blocks of each primary. It is a new object after every placement, so a reader sees by identity
    (`is`) whether blocks may have moved. `targets` lists in the same way the blocks that are pushed to each: to the
    primaries, or to all members of a near group. `held[server]` is the version of that server's blocks in the worker's
    model, or -1 if they are of several versions. `ahead` is the epoch in which some of these blocks were read before
    their commit, if that commit is not known yet; otherwise 0. `proven` is the last (epoch, version) that was read
    before its commit and is committed. `_member` is the member of this worker's process, which has every block once it
    is in the group; "" without one.
    """

    def __init__(self, member: NodeId = "") -> None:
        self._member = member
        self.incarnation = 0
        self.placement: Placement | None = None
        self.by_server: dict[NodeId, tuple[int, ...]] = {}
        self.targets: dict[NodeId, tuple[int, ...]] = self.by_server
        self.held: dict[NodeId, int] = {}
        self.ahead = 0
        self.proven = (0, -1)
        self._ahead_version = -1

    @property
    def epoch(self) -> int:
        """The epoch of the placement; 0 before the first one."""
        return 0 if self.placement is None else self.placement.epoch

    @property
    def version(self) -> int:
        """The version of the whole model; -1 if its blocks are of several versions."""
        versions = set(self.held.values())
        return versions.pop() if len(versions) == 1 else -1

    @property
    def addresses(self) -> dict[NodeId, str]:
        """Where the servers listen to which this worker connects: all, or in a group the members to which it pushes."""
        if self.placement is None:
            return {}
        known = self.placement.addresses
        return {node: known[node] for node in self.targets} if self._member in self.placement.group else dict(known)

    def base_of(self, target: NodeId) -> int:
        """The version of the blocks that are pushed to `target`, in the worker's model."""
        held = self.held.get(target)
        return self.version if held is None else held

    def is_newer(self, placement: Placement) -> bool:
        """Whether `placement` is of a later epoch than the known one; False for the first placement."""
        return self.placement is not None and placement.epoch > self.placement.epoch

    def place(self, placement: Placement, firsts: Mapping[int, int] = _NONE) -> None:
        """Note a placement. `held` of a server stays known if all its blocks in the model are of one version.

        A later placement voids what was read before its commit, unless that commit is known (rule 21). `firsts` has the
        last version that was committed before each of the last epochs: what the next epoch begins after was committed
        in this one.
        """
        if self.is_newer(placement):
            self.confirm(firsts.get(self.epoch + 1, -1))
        if self.ahead and self.is_newer(placement):
            self.held = {s: -1 if v == self._ahead_version else v for s, v in self.held.items()}
            self.ahead = 0
        versions = {block: self.held[s] for s, blocks in self.by_server.items() for block in blocks}
        self.placement = placement
        if self._member in placement.group:
            every = tuple(range(len(placement.owners)))
            self.by_server = self.targets = {self._member: every}
            if placement.near:
                self.targets = dict.fromkeys(placement.group, every)
        else:
            servers = sorted(set(placement.owners) | set(placement.addresses))
            by_server = {s: placement.owned(s) for s in servers}
            self.by_server = self.targets = {s: blocks for s, blocks in by_server.items() if blocks}
        found = {s: {versions.get(b, -1) for b in blocks} for s, blocks in self.by_server.items()}
        self.held = {s: next(iter(known)) if len(known) == 1 else -1 for s, known in found.items()}

    def enter(self, incarnation: int) -> bool:
        """Enter `incarnation`, and void all that was read before. False if it is the current incarnation."""
        if incarnation == self.incarnation:
            return False
        self.incarnation, self.ahead = incarnation, 0
        self.held = dict.fromkeys(self.held, -1)
        return True

    def fill(self, server: NodeId, version: int, *, ahead: bool = False) -> None:
        """Note that the blocks of `server` in the model are of `version`; -1 if only a part of them has arrived.

        With `ahead`, the server has sent them before their commit.
        """
        self.held[server] = version
        if ahead and version >= 0:
            self.ahead, self._ahead_version = self.epoch, version
        else:
            self.confirm(version)

    def confirm_by(self, task: Grant | EvalGrant | PhaseOver) -> None:
        """Note which version is committed, as `task` shows.

        In lock-step the lease of a step is given when the version before its own is committed.
        """
        if (task.incarnation, task.epoch) != (self.incarnation, self.epoch):
            return
        if not isinstance(task, Grant):
            self.confirm(task.version)
        elif task.segment is not None and task.segment.window == 0:
            self.confirm(task.step - 1)

    def confirm(self, version: int) -> None:
        """Note that `version` is committed in the present placement."""
        if self.ahead and version >= self._ahead_version:
            self.proven, self.ahead = (self.ahead, self._ahead_version), 0
