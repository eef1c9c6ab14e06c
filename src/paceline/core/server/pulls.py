"""Reads of versions: each pull is answered at once, parked until its version is applied, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from paceline.core.effects import Send
from paceline.core.message_parts import LEAST_NBYTES, cuts, part_nbytes
from paceline.core.server.ahead import Ahead
from paceline.core.server.assignment import Assignment
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.held_versions import HeldVersions
from paceline.core.server.parked_pulls import ParkedPulls
from paceline.core.server.refusals import Refusals
from paceline.messages import BlockFrame, Pull, PullReply
from paceline.types import Commit, NodeId


class Pulls:
    """Answers pulls from this server's own blocks, in parts of about `part_nbytes`."""

    def __init__(
        self,
        assignment: Assignment,
        versions: HeldVersions,
        ahead: Ahead,
        own: BlockGroup,
        refusals: Refusals,
        part_nbytes: int,
    ) -> None:
        self._ahead = ahead
        self._assignment = assignment
        self._versions = versions
        self._own = own
        self._refusals = refusals
        self._part_nbytes = part_nbytes
        self._parked = ParkedPulls()
        self._cut: tuple[BlockFrame, ...] = ()
        self._bounds = [0, 0]

    def pull(self, sender: NodeId, pull: Pull, payload: Sequence[object] = (), now: float = 0.0) -> list[Send]:
        """Answer, park or refuse one pull."""
        here, there = self._assignment.at, (pull.incarnation, pull.epoch)
        if not self._assignment.entered or there > here:
            self._parked.park(sender, pull)  # the reader knows a placement that this server has not entered
            return []
        problem = self._check(pull)
        if problem is not None:
            return self._refusals.refuse(sender, pull.req, *problem)
        versions, version = self._versions, pull.exact
        if version < 0:
            if versions.applied < 0:
                self._parked.park(sender, pull, version=0)
                return []
            if pull.watermark > versions.watermark.low:
                self._parked.park(sender, pull, watermark=pull.watermark)
                return []
            if pull.after >= 0 and not versions.watermark.has(pull.after):
                self._parked.park(sender, pull, step=pull.after)
                return []
            version = versions.applied
        elif version > versions.applied:
            if pull.ahead and version == self._ahead.version:
                self._ahead.hand_out(version)
                return self._reply(sender, pull, version)
            self._parked.park(sender, pull, version=version)
            return []
        return self._reply(sender, pull, version)

    def _check(self, pull: Pull) -> tuple[str, str] | None:
        incarnation, epoch = self._assignment.at
        if pull.incarnation != incarnation:
            return "incarnation", f"this is incarnation {incarnation}, not {pull.incarnation}"
        if pull.epoch != epoch:
            return "epoch", f"blocks are placed by epoch {epoch}, not {pull.epoch}"
        if pull.blocks is not None and not self._own.blocks.keys() >= set(pull.blocks):
            return "block", "the pull names a block that is not held here"
        applied = self._versions.applied
        if 0 <= pull.exact < applied and pull.exact not in self._versions.kept:
            return "gone", f"version {pull.exact} is older than {applied}"
        return None

    def _reply(self, sender: NodeId, pull: Pull, version: int) -> list[Send]:
        blocks, payload = self._own.store.versions.read(version, pull.have, pull.blocks)
        if blocks != self._cut:
            sizes = [max(LEAST_NBYTES, self._own.blocks[f.block].nbytes) for f in blocks]
            self._cut, self._bounds = blocks, cuts(sizes, part_nbytes(sum(sizes), self._part_nbytes))
        bounds = self._bounds
        incarnation, ahead = self._assignment.incarnation, version > self._versions.applied
        mark = version if ahead else self._versions.mark(version) or 0
        return [
            Send(
                sender,
                PullReply(pull.req, incarnation, version, mark, blocks[a:b], part, len(bounds) - 1, ahead),
                payload[a:b],
            )
            for part, (a, b) in enumerate(pairwise(bounds))
        ]

    def committed(self, commit: Commit) -> list[Send]:
        """Answer the pulls that waited for `commit`, which is now applied."""
        return self._retry(self._parked.take_committed(commit.version, commit.step, self._versions.watermark.low))

    def made_ahead(self) -> list[Send]:
        """Answer the pulls that waited for the version which may now be read before its commit."""
        return self._retry(self._parked.take_ahead(self._ahead.version))

    def entered(self) -> list[Send]:
        """Answer the pulls that waited for this placement, which is now entered."""
        return self._retry(self._parked.take_unconditional())

    def _retry(self, parked: list[tuple[NodeId, Pull]]) -> list[Send]:
        out: list[Send] = []
        for sender, pull in parked:
            out += self.pull(sender, pull)
        return out

    def void(self) -> None:
        """Park every pull until the next placement: this placement or incarnation ends."""
        self._parked.clear_conditions()

    def drop(self, peer: NodeId) -> None:
        """Drop the parked pulls of `peer`, whose session has ended."""
        self._parked.drop(peer)
