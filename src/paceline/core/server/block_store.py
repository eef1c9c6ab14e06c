"""The seam between a server's protocol and its arithmetic: a store of blocks, as four small parts.

Payloads are opaque: frames of bytes in a real server, symbols in the simulator. A store does not decide what counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from paceline.messages import BlockFrame, CopyFrame, SumMeta
from paceline.types import BlockSpec, Commit, Fence, ModelSpec


class SumKey(NamedTuple):
    """Names one sum of slots. Attempts that are not interchangeable have a sum each, named by their fence."""

    step: int
    fence: Fence | None


class SealedAttempt(NamedTuple):
    """One attempt as it was sealed: `payloads` and `revs` by block, `absent` the tensors without a gradient."""

    weight: float
    absent: frozenset[int]
    payloads: Mapping[int, object]
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
        """Add one attempt to the sum `key`. Called in slot order.

        The payloads belong to the store until this returns; the core drops them then.
        """
        ...

    def expect_commit(self, key: SumKey) -> None:
        """The sum has all its slots: its update may be computed before its commit. No result depends on this call."""
        ...

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Squared norm of the mean gradient of each parameter block of the sum; empty without clip_norm."""
        ...

    def drop(self, key: SumKey) -> None:
        """Forget a sum that will never be applied."""
        ...

    def export(self, key: SumKey, blocks: Sequence[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[object]]:
        """The sum `key`, which is complete, of some blocks, as their backups need it. The sum does not change.

        The payload may only be sent at once: to send it again, export it again. Blocks that no slot had are left out.
        """
        ...

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        """Add blocks of a sum, as its primary exported them, to the blocks that came before under that key.

        The payload is the sender's memory, borrowed until the sum is applied or dropped.
        """
        ...


class Versions(Protocol):
    """Readable versions: the current one and those that are kept."""

    def keep(self, version: int) -> None:
        """Keep the current version readable until `release`."""
        ...

    def release(self, version: int) -> None:
        """A kept version need not stay readable. Unknown versions are ignored."""
        ...

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """The blocks at `version` (current or kept) that changed after version `have`."""
        ...


class Copies(Protocol):
    """Whole blocks that go to another server, or to another store of this one."""

    def copy_out(self, blocks: Sequence[int]) -> tuple[tuple[CopyFrame, ...], Sequence[object]]:
        """The current version of `blocks` with their optimizer state, unchanged for as long as the payload is in use.

        Frames of one block follow each other.
        """
        ...

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Write some of what `copy_out` gave on another server; when all of it is written, the blocks are `version`.

        Frames of one block may come in several calls. The payload belongs to the store until this returns.
        """
        ...

    def take(self, blocks: Sequence[int]) -> object:
        """Give up `blocks` with values, optimizer state and kept versions, to be `put` into another store or dropped.

        There are no sums when this is called.
        """
        ...

    def put(self, version: int, taken: object) -> None:
        """Take over blocks from another store of this process, which are at `version` like all others here.

        The store is open (perhaps with no blocks) for the same model.
        """
        ...


class Checkpoints(Protocol):
    """Blocks from a checkpoint, and for one."""

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the open blocks from a checkpoint of `version`; returns each block's hash chain.

        Raises:
            CheckpointError: it is damaged or missing.
        """
        ...

    def save(self, version: int) -> None:
        """Freeze the current version with its optimizer state, to be written while training goes on.

        The shell writes it and tells the core the outcome. A frozen version that is not written yet is given up.
        """
        ...


class BlockStore(Protocol):
    """Blocks of one primary: their readable versions, and the sums that become the next version."""

    @property
    def sums(self) -> Sums:
        """Sums of slots that are not committed yet."""
        ...

    @property
    def versions(self) -> Versions:
        """Readable versions."""
        ...

    @property
    def copies(self) -> Copies:
        """Whole blocks that come and go."""
        ...

    @property
    def checkpoints(self) -> Checkpoints:
        """Blocks from a checkpoint, and for one."""
        ...

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Allocate `blocks`, which have no values yet; all that the store had before is forgotten."""
        ...

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Turn the sum into version `commit.version` (the initial weights for version 0) and forget the sum.

        The version before it stays readable only while it is kept.
        """
        ...
