"""Where the model's blocks are, and which version of them the host's model has."""

from __future__ import annotations

from paceline.types import NodeId, Placement


class ModelState:
    """The blocks of one incarnation. Only its methods change it.

    `by_server` has the blocks of each primary; it is another object after every placement, so a reader can tell by
    identity whether blocks may have moved. `held[server]` is the version of that server's blocks in the host's model,
    -1 while it has blocks of several.
    """

    def __init__(self) -> None:
        self.incarnation = 0
        self.placement: Placement | None = None
        self.by_server: dict[NodeId, tuple[int, ...]] = {}
        self.held: dict[NodeId, int] = {}

    @property
    def epoch(self) -> int:
        """The epoch of the placement; 0 before the first one."""
        return 0 if self.placement is None else self.placement.epoch

    @property
    def version(self) -> int:
        """The version of the whole model; -1 if it has blocks of several."""
        versions = set(self.held.values())
        return versions.pop() if len(versions) == 1 else -1

    def is_newer(self, placement: Placement) -> bool:
        """Whether `placement` replaces another one."""
        return self.placement is not None and placement.epoch > self.placement.epoch

    def place(self, placement: Placement) -> None:
        """Blocks are where `placement` says. A version survives where all blocks of a server have the same one."""
        versions = {block: self.held[s] for s, blocks in self.by_server.items() for block in blocks}
        self.placement = placement
        servers = sorted(set(placement.owners) | set(placement.addresses))
        by_server = {s: placement.owned(s) for s in servers}
        self.by_server = {s: blocks for s, blocks in by_server.items() if blocks}
        found = {s: {versions.get(b, -1) for b in blocks} for s, blocks in self.by_server.items()}
        self.held = {s: next(iter(known)) if len(known) == 1 else -1 for s, known in found.items()}

    def enter(self, incarnation: int) -> bool:
        """Enter `incarnation`: nothing that was read before counts. False if this is the current one."""
        if incarnation == self.incarnation:
            return False
        self.incarnation = incarnation
        self.held = dict.fromkeys(self.held, -1)
        return True

    def fill(self, server: NodeId, version: int) -> None:
        """The host puts blocks of `server` into its model: all of `version`, or (-1) a part of them."""
        self.held[server] = version
