"""Everything that a server has copies of, in sync or on the way to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import chain

from paceline.core.effects import Send
from paceline.core.server.block_groups import Group, regroup, shares
from paceline.core.server.block_store import BlockStore
from paceline.core.server.following import Follower, Joiner
from paceline.messages import Assign, Copied, CopyPart, Replicate, Replicated
from paceline.types import COORDINATOR, Commit, NodeId


class Copies:
    """Groups of other primaries' blocks, by primary."""

    def __init__(self, node: NodeId, make: Callable[[], BlockStore]) -> None:
        self.followers: dict[NodeId, Follower] = {}
        self.joiners: dict[NodeId, Joiner] = {}
        self._node = node
        self._make = make

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.followers or self.joiners)

    @property
    def chains(self) -> dict[int, bytes]:
        """The hash chains of all complete copies."""
        complete = [*self.followers.values(), *(joiner for joiner in self.joiners.values() if joiner.caught_up)]
        return {block: chain for group in complete for block, chain in group.chains.items()}

    # ------------------------------------------------------------ placements

    def open(self, assign: Assign, own: Group) -> None:
        """An incarnation begins: make room for every block anew, `own` ones too."""
        held, joining = shares(assign.placement, self._node)
        own.open(assign.spec, [assign.blocks[b] for b in held.pop(self._node, ())])
        self.followers, self.joiners = {}, {}
        for primary, blocks in held.items():
            self.followers[primary] = follower = Follower(self._make())
            follower.open(assign.spec, [assign.blocks[b] for b in blocks])
        self._join(assign, joining)

    def regroup(self, assign: Assign, own: Group) -> int:
        """Another placement of the same incarnation: blocks go to the group of their primary, with all they have.

        Returns the oldest version that may be there of all of them.
        """
        held, joining = shares(assign.placement, self._node)
        came = [(joiner, tuple(joiner.blocks)) for joiner in self.joiners.values() if joiner.caught_up]
        groups: list[Group] = [own, *self.followers.values(), *(joiner for joiner, _ in came)]

        def target(primary: NodeId) -> Group:
            if primary == self._node:
                return own
            if primary not in self.followers:
                self.followers[primary] = Follower(self._make())
                self.followers[primary].open(assign.spec, ())
            return self.followers[primary]

        regroup(groups, held, target, assign.at)
        self.followers = {primary: group for primary, group in self.followers.items() if primary in held}
        self._join(assign, joining)
        wanted = {block for blocks in held.values() for block in blocks}
        return max((joiner.begun for joiner, blocks in came if not wanted.isdisjoint(blocks)), default=-1)

    def _join(self, assign: Assign, joining: dict[NodeId, list[int]]) -> None:
        self.joiners = {}
        for primary, blocks in joining.items():
            self.joiners[primary] = joiner = Joiner(self._make(), primary, assign.at)
            joiner.open(assign.spec, [assign.blocks[b] for b in blocks])

    # ------------------------------------------------------------ what primaries send

    def replicate(self, sender: NodeId, message: Replicate, payload: Sequence[object], *, over: bool) -> list[Send]:
        """A sum of the current placement; `over` if its step is committed already. Returns the answer."""
        reply = Send(sender, Replicated(message.req, message.incarnation, message.epoch))
        if not message.joining:
            follower = self.followers.get(sender)
            if follower is not None and not over:
                follower.install(message, payload)
            return [reply] if follower is not None else []
        joiner = self.joiners.get(sender)
        if joiner is None:
            return []
        if not over or joiner.awaits(message.step):
            joiner.install(message, payload)
        return joiner.answer(message)

    def part(self, sender: NodeId, message: CopyPart, payload: Sequence[object]) -> list[Send]:
        """A part of a copy; returns the answer, and what is said if it was the last."""
        joiner = self.joiners.get(sender)
        if joiner is None:
            return []
        before, out = joiner.caught_up, joiner.part(message, payload)
        return out if before or not joiner.caught_up else out + self.tell(message.incarnation, message.epoch)

    # ------------------------------------------------------------ commits

    def apply(self, commit: Commit) -> None:
        """The next commit of the log."""
        for follower in self.followers.values():
            follower.apply(commit)
        for joiner in self.joiners.values():
            joiner.queue(commit)

    def drain(self, kept: Container[int], incarnation: int, epoch: int) -> list[Send]:
        """Let those who join catch up as far as they can, and say so when they have."""
        out: list[Send] = []
        for joiner in self.joiners.values():
            before = joiner.caught_up
            out += joiner.drain(kept)
            if joiner.caught_up and not before:
                out += self.tell(incarnation, epoch)
        return out

    def tell(self, incarnation: int, epoch: int) -> list[Send]:
        """Who has caught up, as long as the coordinator has not noted it."""
        return [
            Send(COORDINATOR, Copied(incarnation, epoch, primary))
            for primary, joiner in self.joiners.items()
            if joiner.caught_up and not joiner.noted
        ]

    def noted(self, source: NodeId) -> None:
        """The coordinator knows that the copy from `source` is complete."""
        joiner = self.joiners.get(source)
        if joiner is not None:
            joiner.noted = True

    def keep(self, version: int) -> None:
        """The current version must stay readable. Those who join see to that when they are there."""
        for follower in self.followers.values():
            follower.store.keep(version)

    def release(self, version: int) -> None:
        """A kept version need not be readable any longer."""
        for group in chain(self.followers.values(), self.joiners.values()):
            group.store.release(version)

    def drop_sums(self) -> None:
        """Whatever is not committed will not be."""
        for group in chain(self.followers.values(), self.joiners.values()):
            group.drop_sums()
