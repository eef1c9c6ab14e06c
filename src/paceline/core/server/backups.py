"""Copies of other primaries' blocks on this server: in sync, or still being sent.

A backup follows its primary and the log: the primary sends each sum, and the log names the sum that becomes the next
version. A backup decides nothing itself, so that its blocks stay bit-identical to those of the primary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

from paceline.core.effects import Send
from paceline.core.server.block_groups import BlockGroup, regroup, shares
from paceline.core.server.block_store import BlockStore, SumKey
from paceline.messages import Assign, Chained, Copied, CopyPart, CopyPartAck, Replicate, Replicated
from paceline.types import COORDINATOR, Commit, Fence, NodeId

_MAX_QUEUED = 4  # commits that may wait until a copy is complete; with more, the primary must wait


FindOutdated = Callable[[Sequence[tuple[int, int]]], list[int]]
"""Of steps with the revisions that they were begun by: those whose segment is another one now."""


class Backup:
    """Blocks of one primary, of which this server has a copy, and the sums that the primary has sent."""

    def __init__(self, store: BlockStore) -> None:
        self.group = BlockGroup(store)
        self.sums: dict[int, dict[tuple[Fence, ...], SumKey]] = {}
        self._arriving: dict[SumKey, set[int]] = {}
        self._revisions: dict[int, int] = {}

    def install(self, message: Replicate, payload: Sequence[object]) -> None:
        """Store a part of a sum; once all its parts have arrived, `sums` has it. A repeated part changes nothing.

        A sum by a newer segment of its step replaces those by an older one (rule 19).
        """
        known = self._revisions.setdefault(message.step, message.revision)
        if message.revision < known:
            return
        if message.revision > known:
            self.drop_steps([message.step])
            self._revisions[message.step] = message.revision
        if message.fences in self.sums.get(message.step, ()):
            return
        key = SumKey(message.step, message.fence)
        parts = self._arriving.setdefault(key, set())
        if message.part not in parts:
            parts.add(message.part)
            self.group.store.sums.install(key, message.meta, message.blocks, payload)
        if len(parts) == message.parts:
            del self._arriving[key]
            self.sums.setdefault(message.step, {})[message.fences] = key

    def apply(self, commit: Commit) -> None:
        """Turn the sum that the log names into the next version, and drop the other sums of its step."""
        sums = self.sums.pop(commit.step, {})
        # Where attempts are interchangeable, the primary may have summed other attempts than the log names.
        fences = commit.fences if commit.fences in sums else next((f for f, key in sums.items() if not key.fence), None)
        assert fences is not None, f"commit of step {commit.step} before its sum was replicated"
        self.group.store.apply(sums.pop(fences), commit)
        self.group.extend(commit, fences)
        for key in sums.values():
            self.group.store.sums.drop(key)
        self._drop_arriving(commit.step)
        self._revisions.pop(commit.step, None)

    def drop_sums(self, needed: Collection[int] = ()) -> None:
        """Drop the sums of all steps but the `needed` ones: they will never be committed."""
        self.drop_steps([step for step in self._revisions if step not in needed])

    def drop_steps(self, steps: Iterable[int]) -> None:
        """Drop the sums of these steps."""
        for step in steps:
            for key in self.sums.pop(step, {}).values():
                self.group.store.sums.drop(key)
            self._drop_arriving(step)
            self._revisions.pop(step, None)

    def drop_outdated(self, find: FindOutdated, needed: Collection[int] = ()) -> None:
        """Drop the sums of the steps that have another segment now, except of the `needed` ones."""
        self.drop_steps([step for step in find(list(self._revisions.items())) if step not in needed])

    def _drop_arriving(self, step: int) -> None:
        for key in [k for k in self._arriving if k.step == step]:
            del self._arriving[key]
            self.group.store.sums.drop(key)


class JoiningBackup:
    """A copy that its primary is sending: the blocks as they were at version `begun`, then every commit after it.

    Commits that arrive before the copy is complete wait in a queue; the primary waits once the queue is full.
    """

    def __init__(self, store: BlockStore, primary: NodeId, version: int) -> None:
        self.backup = Backup(store)
        self.begun = self.version = version
        self.noted = False
        self._primary = primary
        self._parts: set[int] = set()
        self._complete = False
        self._queue: deque[Commit] = deque()
        self._unanswered: list[Send] = []

    @property
    def group(self) -> BlockGroup:
        """The blocks of the copy."""
        return self.backup.group

    @property
    def caught_up(self) -> bool:
        """Whether the copy is complete and every commit is applied to it."""
        return self._complete and not self._queue

    def awaits(self, step: int) -> bool:
        """Whether `step` is committed, but not yet applied to the copy."""
        return any(commit.step == step for commit in self._queue)

    def receive(self, message: CopyPart, payload: Sequence[object]) -> list[Send]:
        """Store a part of the copy, and answer it."""
        if message.part not in self._parts:
            self._parts.add(message.part)
            self.group.store.copies.copy_in(message.version, message.frames, payload)
            self.group.copy_in(message.chains)
            self._complete = len(self._parts) == message.parts
        return [Send(self._primary, CopyPartAck(message.req, message.incarnation, message.epoch, message.part))]

    def answer(self, message: Replicate) -> list[Send]:
        """Answer that a sum is stored. If the queue of commits is full, `drain` returns the answer later."""
        reply = Send(self._primary, Replicated(message.req, message.incarnation, message.epoch))
        if len(self._queue) < _MAX_QUEUED:
            return [reply]
        if reply not in self._unanswered:
            self._unanswered.append(reply)
        return []

    def queue(self, commit: Commit) -> None:
        """Add a commit of the log, to be applied by `drain`."""
        self._queue.append(commit)

    def drain(self, kept: Container[int]) -> list[Send]:
        """Apply the queued commits whose sums have arrived, and keep the `kept` versions readable.

        Returns the answers that a full queue held back.
        """
        versions = self.group.store.versions
        while self._complete and self._queue and self._queue[0].step in self.backup.sums:
            if self.version in kept:
                versions.keep(self.version)
            commit = self._queue.popleft()
            self.backup.apply(commit)
            self.version = commit.version
            if self.version in kept:
                versions.keep(self.version)
        if len(self._queue) >= _MAX_QUEUED:
            return []
        late, self._unanswered = self._unanswered, []
        return late

    def note(self) -> None:
        """Remember that the coordinator knows that this copy has caught up."""
        self.noted = True

    def drop_sums(self) -> None:
        """Drop the sums of steps that are not committed: they never will be."""
        self.backup.drop_sums([commit.step for commit in self._queue])

    def drop_outdated(self, find: FindOutdated) -> None:
        """Drop the sums of steps that have another segment now, except of committed ones."""
        self.backup.drop_outdated(find, [commit.step for commit in self._queue])


class Backups:
    """All copies on this server, by primary: `synced` are in the in-sync set, `joining` are still being sent."""

    def __init__(self, node: NodeId, make: Callable[[], BlockStore]) -> None:
        self.synced: dict[NodeId, Backup] = {}
        self.joining: dict[NodeId, JoiningBackup] = {}
        self._node = node
        self._make = make

    def __bool__(self) -> bool:
        """Whether this server has any copy."""
        return bool(self.synced or self.joining)

    @property
    def synced_groups(self) -> list[BlockGroup]:
        """The blocks of each copy that is in sync."""
        return [backup.group for backup in self.synced.values()]

    @property
    def groups(self) -> Iterator[BlockGroup]:
        """The blocks of each copy."""
        yield from self.synced_groups
        yield from [joining.group for joining in self.joining.values()]

    @property
    def chains(self) -> dict[int, bytes]:
        """The hash chains of all complete copies."""
        groups = [*self.synced_groups, *(joining.group for joining in self.joining.values() if joining.caught_up)]
        return {block: chain for group in groups for block, chain in group.chains.items()}

    def at(self, version: int) -> list[BlockGroup]:
        """The blocks of each complete copy that is at `version`, which is the newest one."""
        joined = [copy.group for copy in self.joining.values() if copy.caught_up and copy.version == version]
        return [*self.synced_groups, *joined]

    # ------------------------------------------------------------ placements

    def open(self, assign: Assign, own: BlockGroup) -> None:
        """Allocate new memory for all blocks of a placement, those of `own` included."""
        synced, joining = shares(assign.placement, self._node)
        own.open(assign.spec, [assign.blocks[b] for b in synced.pop(self._node, ())])
        self.synced = {}
        for primary, blocks in synced.items():
            self.synced[primary] = backup = Backup(self._make())
            backup.group.open(assign.spec, [assign.blocks[b] for b in blocks])
        self._open_joining(assign, joining)

    def regroup(self, assign: Assign, own: BlockGroup) -> int:
        """Enter another placement of the same incarnation: each block moves to the group of its primary.

        Returns the oldest version of which this server may have every block.
        """
        synced, joining = shares(assign.placement, self._node)
        joined = [(copy, tuple(copy.group.blocks)) for copy in self.joining.values() if copy.caught_up]
        groups = [own, *self.synced_groups, *(copy.group for copy, _ in joined)]

        def target(primary: NodeId) -> BlockGroup:
            if primary == self._node:
                return own
            if primary not in self.synced:
                self.synced[primary] = Backup(self._make())
                self.synced[primary].group.open(assign.spec, ())
            return self.synced[primary].group

        regroup(groups, synced, target, assign.at)
        self.synced = {primary: backup for primary, backup in self.synced.items() if primary in synced}
        self._open_joining(assign, joining)
        wanted = {block for blocks in synced.values() for block in blocks}
        return max((copy.begun for copy, blocks in joined if not wanted.isdisjoint(blocks)), default=-1)

    def _open_joining(self, assign: Assign, joining: dict[NodeId, list[int]]) -> None:
        self.joining = {}
        for primary, blocks in joining.items():
            self.joining[primary] = copy = JoiningBackup(self._make(), primary, assign.at)
            copy.group.open(assign.spec, [assign.blocks[b] for b in blocks])

    # ------------------------------------------------------------ what primaries send

    def replicate(self, sender: NodeId, message: Replicate, payload: Sequence[object], *, over: bool) -> list[Send]:
        """Store a sum of the current placement, and answer; `over` says that its step is already committed."""
        if not message.joining:
            backup = self.synced.get(sender)
            if backup is None:
                return []
            if not over:
                backup.install(message, payload)
            return [Send(sender, Replicated(message.req, message.incarnation, message.epoch))]
        joining = self.joining.get(sender)
        if joining is None:
            return []
        if not over or joining.awaits(message.step):
            joining.backup.install(message, payload)
        return joining.answer(message)

    def receive(self, sender: NodeId, message: CopyPart, payload: Sequence[object]) -> list[Send]:
        """Store a part of a copy, and answer; after the last part, report to the coordinator."""
        joining = self.joining.get(sender)
        if joining is None:
            return []
        before, out = joining.caught_up, joining.receive(message, payload)
        return out if before or not joining.caught_up else out + self.report(message.incarnation, message.epoch)

    # ------------------------------------------------------------ commits

    def apply(self, commit: Commit) -> None:
        """Apply the next commit of the log to the copies in sync, and queue it for those that are being sent."""
        for backup in self.synced.values():
            backup.apply(commit)
        for joining in self.joining.values():
            joining.queue(commit)

    def drain(self, kept: Container[int], incarnation: int, epoch: int) -> list[Send]:
        """Apply queued commits as far as possible, and report copies that have caught up."""
        out: list[Send] = []
        for joining in self.joining.values():
            before = joining.caught_up
            out += joining.drain(kept)
            if joining.caught_up and not before:
                out += self.report(incarnation, epoch)
        return out

    def report(self, incarnation: int, epoch: int) -> list[Send]:
        """Tell the coordinator which copies have caught up, as long as it has not noted it."""
        return [
            Send(COORDINATOR, Copied(incarnation, epoch, primary))
            for primary, joining in self.joining.items()
            if joining.caught_up and not joining.noted
        ]

    def note(self, source: NodeId) -> None:
        """Remember that the coordinator knows that the copy from `source` has caught up."""
        joining = self.joining.get(source)
        if joining is not None:
            joining.note()

    def report_chains(self, incarnation: int, epoch: int, version: int, more: Mapping[int, bytes]) -> list[Send]:
        """Report the hash chains of the copies, and `more`: the coordinator compares them with those of primaries."""
        chains = tuple(sorted({**self.chains, **more}.items()))
        return [Send(COORDINATOR, Chained(incarnation, epoch, version, chains))] if chains else []

    def keep(self, version: int) -> None:
        """Keep the current version readable. A joining copy keeps that version when `drain` reaches it."""
        for group in self.synced_groups:
            group.store.versions.keep(version)

    def release(self, version: int) -> None:
        """Stop keeping `version` readable."""
        for group in self.groups:
            group.store.versions.release(version)

    def drop_sums(self) -> None:
        """Drop the sums of steps that are not committed: they never will be."""
        for backup in self.synced.values():
            backup.drop_sums()
        for joining in self.joining.values():
            joining.drop_sums()

    def drop_outdated(self, find: FindOutdated) -> None:
        """Drop the sums of steps that have another segment now: they will never be committed."""
        for backup in self.synced.values():
            backup.drop_outdated(find)
        for joining in self.joining.values():
            joining.drop_outdated(find)
