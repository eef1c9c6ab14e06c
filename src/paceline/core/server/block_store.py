"""The interface between a server's protocol and its arithmetic: a store of blocks, in four parts.

Payloads are opaque: frames of bytes in a real server, symbols in the simulator. A store does not decide which attempts
count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from paceline.messages import BlockFrame, CopyFrame, SumMeta
from paceline.types import BlockSpec, Commit, Fence, Hyper, ModelSpec


class SumKey(NamedTuple):
    """The name of one sum of slots. `fence` is None, unless each attempt of the step has a sum of its own."""

    step: int
    fence: Fence | None


class SealedAttempt(NamedTuple):
    """One attempt as it was sealed: `payloads` and `revs` by block, `absent` the tensors without a gradient."""

    weight: float
    absent: frozenset[int]
    payloads: Mapping[int, Any]
    slot: int = -1
    fence: Fence | None = None
    revs: Mapping[int, int] | None = None


class Sums(Protocol):
    """Sums of slots that are not committed yet."""

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        """Offer blocks of an attempt that is not sealed yet, as (rev, payload), to be summed early.

        The early sum counts only if `add` names the same slot, fence and revs. No result depends on this call.
        """
        ...

    def add(self, key: SumKey, attempt: SealedAttempt) -> None:
        """Add one sealed attempt to the sum `key`. The core calls this in slot order and keeps no payload.

        The store may use the payloads without copying them until the sum is applied or dropped.
        """
        ...

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Squared norm of the mean gradient of each parameter block of the sum; empty without clip_norm."""
        ...

    def drop(self, key: SumKey) -> None:
        """Forget a sum that will never be applied."""
        ...

    def export(self, key: SumKey, blocks: Sequence[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[object]]:
        """The complete sum `key` of `blocks`, as their backups need it. The sum does not change.

        The payload may only be sent at once: to send it again, export it again. Blocks without a push are not in it.
        """
        ...

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        """Add blocks of a sum, which the primary exported, to the blocks already installed under `key`.

        The payload is the sender's memory, borrowed until the sum is applied or dropped.
        """
        ...


class GroupSums(Protocol):
    """Sums that a group of members makes together, each of its own slots (the collective reducer)."""

    def contribute(self, step: int, num_slots: int, attempts: Sequence[SealedAttempt]) -> object:
        """The part of this member in the sum of `step`: its `attempts`, in slot order; zeros without any.

        The members reduce their parts; `adopt` takes the result. Nothing of the attempts is read after this call.
        """
        ...

    def adopt(self, key: SumKey, reduced: object, ranks: Sequence[int]) -> tuple[Fence | None, ...]:
        """Make `reduced`, which the group has reduced, the complete sum `key`; slot i is of the member `ranks[i]`.

        Returns the attempt that was added for each slot, None for a slot that no member or more than one has added. If
        these are not the attempts that the caller expects, it drops the sum.
        """
        ...


class Versions(Protocol):
    """Readable versions: the current one, those that are kept, and perhaps the next one."""

    @property
    def ahead(self) -> int:
        """The version after the current one, if `BlockStore.update_early` has made it readable; otherwise -1."""
        ...

    def keep(self, version: int) -> None:
        """Keep the current version readable until `release`."""
        ...

    def release(self, version: int) -> None:
        """Stop keeping `version` readable. An unknown version is ignored."""
        ...

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """The blocks of `version` (current, kept or `ahead`) that changed after version `have` of the reader."""
        ...


class Copies(Protocol):
    """Blocks with their optimizer state, copied to another server or moved to another store of this server."""

    def copy_out(self, blocks: Sequence[int]) -> tuple[tuple[CopyFrame, ...], Sequence[object]]:
        """The current version of `blocks` with their optimizer state. It does not change while the payload is in use.

        Frames of one block follow each other.
        """
        ...

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Write frames that `copy_out` returned on another server; once all are written, the blocks are at `version`.

        Frames of one block may come in several calls. The payload is not needed after this call.
        """
        ...

    def take(self, blocks: Sequence[int]) -> object:
        """Remove `blocks`, and return them with optimizer state and kept versions, for `put` of another store.

        The store must have no sums.
        """
        ...

    def put(self, version: int, taken: object) -> None:
        """Add blocks that `take` removed from another store of this process. All blocks of this store are at `version`.

        The store must be open (perhaps with no blocks) for the same model.
        """
        ...


class Checkpoints(Protocol):
    """Blocks that are loaded from a checkpoint, or saved to one."""

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the open blocks from a checkpoint of `version`; returns the hash chain of each block.

        Raises:
            CheckpointError: the checkpoint is damaged or missing.
        """
        ...

    def save(self, version: int, without: Collection[int] = ()) -> None:
        """Freeze the current version with its optimizer state, so that it can be written while training goes on.

        Blocks in `without` are not written: another member of the group writes them.

        The shell writes the version and reports the outcome to the core. A frozen version before it is given up.
        """
        ...

    def freeze(self) -> object:
        """The current version with its optimizer state, for the shell, which hashes it while training goes on.

        It does not change until the shell releases it. What `save` has frozen is not affected.
        """
        ...


class BlockStore(Protocol):
    """Blocks of one primary: their readable versions, and the sums from which the next version is computed."""

    @property
    def sums(self) -> Sums:
        """Sums of slots that are not committed yet."""
        ...

    @property
    def group_sums(self) -> GroupSums:
        """Sums that a group of members makes together."""
        ...

    @property
    def versions(self) -> Versions:
        """Readable versions."""
        ...

    @property
    def copies(self) -> Copies:
        """Blocks that are copied to other servers, or moved between stores."""
        ...

    @property
    def checkpoints(self) -> Checkpoints:
        """Blocks that are loaded from a checkpoint, or saved to one."""
        ...

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Allocate `blocks`, which have no values yet, and forget everything that the store had before."""
        ...

    def update_early(self, key: SumKey, hyper: Hyper) -> bool:
        """Compute the next version from the sum, which has all its slots, in other memory than the current one.

        True if all of it can be read now, as `versions.ahead`: it is what `apply` makes if the commit has `hyper`. No
        other result depends on this call. Without `hyper` the store may guess.
        """
        ...

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Turn the sum into version `commit.version` (the initial weights for version 0) and forget the sum.

        The version before `commit.version` stays readable only if it is kept.
        """
        ...
