"""Reads the final version from the servers, block by block, and hashes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import Send
from paceline.core.layout import digest_header
from paceline.messages import Pull, PullReply
from paceline.types import ITEM_NBYTES, NodeId

_AHEAD = 8  # blocks requested at once: enough to hide the round trip, few enough to bound the memory
_SILENT_S = 2.0  # seconds: without an answer for this long, the reader is stale and the caller starts another


class DigestReader:
    """Computes the SHA-256 over the names, dtypes, shapes and bytes of one version's tensors, in the model's order.

    `paceline.blocks.tensors.digest` computes the same value from a model; this class reads bytes and needs no torch.
    A reader is `stale` when the version or the placement has changed, or when no server answers; the caller then
    creates another reader.
    """

    def __init__(self, core: CoordinatorCore, now: float) -> None:
        assert core.tables.identity.model is not None
        assert core.placement is not None
        self._tensors = core.tables.identity.model.tensors
        self._blocks = core.tables.identity.blocks
        self._owners = core.placement.owners
        self._epoch = core.placement.epoch
        self._incarnation = core.incarnation
        self._version = core.version
        self._hash = hashlib.sha256()
        self._at = -1
        self._next = 0
        self._hashed = 0
        self._arrived: dict[int, bytes] = {}
        self._heard = now
        self.value: str | None = None

    def stale(self, core: CoordinatorCore, now: float) -> bool:
        """Whether the version or the placement has changed since this reader began, or no block has arrived in time."""
        epoch = None if core.placement is None else core.placement.epoch
        if (self._incarnation, self._epoch, self._version) != (core.incarnation, epoch, core.version):
            return True
        return self.value is None and now - self._heard > _SILENT_S

    def start(self) -> list[Send]:
        """Return the requests for the first blocks."""
        sends = [self._read() for _ in range(min(_AHEAD, len(self._blocks)))]
        self._advance()
        return sends

    def _read(self) -> Send:
        number = self._next
        self._next += 1
        pull = Pull(number, self._incarnation, self._epoch, self._version, blocks=(number,))
        return Send(self._owners[number], pull)

    def received(self, peer: NodeId, reply: PullReply, frames: Sequence[memoryview], now: float) -> list[Send]:
        """Take a block that a server has sent; return the requests for further blocks."""
        if (reply.incarnation, reply.version) != (self._incarnation, self._version):
            return []  # the answer to an earlier reader
        if not self._hashed <= reply.req < self._next or peer != self._owners[reply.req]:
            return []
        if len(frames) == 1 and reply.blocks[0].block == reply.req:
            self._heard = now
            self._arrived[reply.req] = bytes(frames[0])
        self._advance()
        more = min(len(self._blocks), self._hashed + _AHEAD) - self._next
        return [self._read() for _ in range(max(0, more))]

    def _advance(self) -> None:
        while self._hashed in self._arrived:
            block, content = self._blocks[self._hashed], self._arrived.pop(self._hashed)
            size = ITEM_NBYTES[block.dtype]
            for piece in block.pieces:
                self._begin(piece.tensor)
                self._hash.update(content[piece.offset * size : (piece.offset + piece.numel) * size])
            self._hashed += 1
        if self._hashed == len(self._blocks) and self.value is None:
            self._begin(len(self._tensors) - 1)
            self.value = self._hash.hexdigest()

    def _begin(self, tensor: int) -> None:
        while self._at < tensor:
            self._at += 1
            spec = self._tensors[self._at]
            self._hash.update(digest_header(spec.name, spec.dtype, spec.shape))
