"""The seam between a server's protocol and its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from paceline.messages import BlockFrame, CopyFrame, SumMeta
from paceline.types import BlockSpec, Commit, Fence, ModelSpec


class SumKey(NamedTuple):
    """Names one sum of slots. Attempts that are not interchangeable are summed apart, by their fence."""

    step: int
    fence: Fence | None


class BlockStore(Protocol):
    """Blocks of one server: their readable versions and the sums that become the next one.

    Payloads are opaque: frames of bytes in a real server, symbols in the simulator. A payload handed to `add` is the
    store's until `add` returns; the core drops it then. Nothing here decides what counts or when.
    """

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Make room for `blocks`, which hold nothing yet; whatever was there before is forgotten."""
        ...

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the open blocks from a checkpoint, which is `version`; returns each block's hash chain.

        Raises:
            CheckpointError: it is damaged or not there.
        """
        ...

    def save(self, version: int) -> None:
        """Freeze the current version with its optimizer state, to be written while training goes on.

        The shell writes it and tells the core how that went; a frozen version that is not written yet gives way.
        """
        ...

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        """Blocks of an attempt that is not sealed yet, as (rev, payload): a hint that they may be summed beforehand.

        What is made of them counts only if `add` names the same slot, fence and revs; nothing depends on this call.
        """
        ...

    def add(
        self,
        key: SumKey,
        weight: float,
        absent: frozenset[int],
        payloads: Mapping[int, object],
        *,
        slot: int = -1,
        fence: Fence | None = None,
        revs: Mapping[int, int] | None = None,
    ) -> None:
        """Add one sealed attempt, given by block, to the sum `key`. Called in slot order."""
        ...

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Squared norm of the mean gradient of each parameter block of the sum; empty without clip_norm."""
        ...

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Turn the sum into version `commit.version` (the initial weights for version 0) and forget the sum.

        The version before it stays readable only while it is kept.
        """
        ...

    def drop(self, key: SumKey) -> None:
        """Forget a sum that will never be applied."""
        ...

    def keep(self, version: int) -> None:
        """The current version must stay readable until `release`."""
        ...

    def release(self, version: int) -> None:
        """A kept version need not be readable any longer. Unknown versions are ignored."""
        ...

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """The blocks at `version` (current or kept) that changed after version `have`."""
        ...

    # ------------------------------------------------------------ copies on other servers

    def export(self, key: SumKey, blocks: Sequence[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[object]]:
        """The sum `key`, which is complete, of some blocks, as their backups need it. It stays as it is.

        The payload may be sent at once, and only then: to send it again, export it again. Blocks that no slot had are
        left out.
        """
        ...

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        """Some blocks of a sum as its primary exported them, beside those that are there under that key.

        The payload is the sender's memory, borrowed until the sum is applied or dropped.
        """
        ...

    def copy_out(self, blocks: Sequence[int]) -> tuple[tuple[CopyFrame, ...], Sequence[object]]:
        """The current version of `blocks` with their optimizer state, frozen like `save` as long as anybody has them.

        Frames of one block follow each other.
        """
        ...

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Some of what `copy_out` gave elsewhere, for blocks that are open here. When all is there, it is `version`.

        Frames of one block may come in several calls. The payload is the store's until this returns.
        """
        ...

    def take(self, blocks: Sequence[int]) -> object:
        """Give up `blocks` with everything (values, optimizer state, kept versions), to be `put` elsewhere or dropped.

        There are no sums when this is called.
        """
        ...

    def put(self, version: int, taken: object) -> None:
        """Take over blocks from another store of this process, at `version`, beside those that are here.

        The store is open (with no blocks, perhaps) for the same model.
        """
        ...
