"""Dense blocks in memory: sums of slots, readable versions, the optimizer. Arithmetic of rule 11, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from paceline.blocks import bytes_of, new_block, piece_of, tensor_of
from paceline.checkpoint.manifest import read_manifest
from paceline.checkpoint.shards import BlockState, read_shards
from paceline.checkpoint.storage import Storage
from paceline.core.store import SumKey
from paceline.errors import CheckpointError
from paceline.messages import BlockFrame
from paceline.server.optimizers import PieceOptimizer, State
from paceline.transport.base import Delivery
from paceline.types import INIT_STEP, BlockSpec, Commit, Fence, Kind, ModelSpec

_CHUNK_NBYTES = 1 << 20  # pieces updated together: few optimizer calls for small blocks, cache-sized for large ones


class Buffer:
    """One version of one block. Readers are deliveries that may still look at it."""

    __slots__ = ("_readers", "frame", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.frame = bytes_of(tensor)
        self._readers: list[Delivery] = []

    def lend(self, delivery: Delivery) -> None:
        """The lane reads the buffer until `delivery` is done."""
        self._readers = [d for d in self._readers if not d.done]
        if not delivery.done:
            self._readers.append(delivery)

    @property
    def idle(self) -> bool:
        """Nobody reads it any more, so it may be written."""
        self._readers = [d for d in self._readers if not d.done]
        return not self._readers


@dataclass(slots=True)
class _Sum:
    """Weighted sums of the slots so far, by block. `own[b]` is False while the sum is a borrowed frame."""

    weight: float = 0.0
    acc: dict[int, torch.Tensor] = field(default_factory=dict)
    own: dict[int, bool] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)


class Frozen:
    """One version as it was, to be written to a checkpoint: nothing in `blocks` changes until `done` is set.

    It is a `Delivery`: whoever reads it, in any thread, sets `done` when he has finished.
    """

    __slots__ = ("blocks", "done", "version")

    def __init__(self, version: int, blocks: dict[int, BlockState]) -> None:
        self.version = version
        self.blocks = blocks
        self.done = False


@dataclass(slots=True)
class _Chunk:
    """Parameter blocks whose pieces one optimizer instance updates.

    `shared` are the frozen versions that hold its state as it is now; the next update goes on with a copy of it.
    That copy is made in `spare`, which frozen versions held before: `readers`.
    """

    blocks: list[BlockSpec]
    optimizer: PieceOptimizer
    shared: list[Frozen] = field(default_factory=list)
    spare: list[State] = field(default_factory=list)
    readers: list[Frozen] = field(default_factory=list)

    def numbered(self) -> Iterator[tuple[int, int]]:
        """(block, piece of it) for every piece, in the order of the optimizer."""
        for block in self.blocks:
            for piece in range(len(block.pieces)):
                yield block.index, piece

    def own(self) -> None:
        """Make sure that nobody reads the state which the next update writes."""
        self.shared = [f for f in self.shared if not f.done]
        if self.shared:
            room = self.spare if all(f.done for f in self.readers) else []
            self.spare, self.readers, self.shared = self.optimizer.depart(room), self.shared, []


class DenseStore:
    """`BlockStore` over torch tensors. Checkpoints are read from `storage`; `frozen` is what waits to be written."""

    def __init__(self, storage: Storage | None = None) -> None:
        self._storage = storage
        self._forget()

    def _forget(self) -> None:
        self._spec: ModelSpec | None = None
        self._blocks: dict[int, BlockSpec] = {}
        self._current: dict[int, Buffer] = {}
        self._changed: dict[int, int] = {}
        self._kept: dict[int, tuple[dict[int, Buffer], dict[int, int]]] = {}
        self._spare: dict[int, list[Buffer]] = {}
        self._sums: dict[SumKey, _Sum] = {}
        self._spare_acc: dict[int, list[torch.Tensor]] = {}
        self._chunks: list[_Chunk] = []
        self.frozen: Frozen | None = None
        self.version = -1

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Make room for `blocks`, and for nothing else."""
        self._forget()
        self._spec = spec
        for block in blocks:
            self._blocks[block.index] = block
            self._current[block.index] = Buffer(new_block(block))
            self._changed[block.index] = 0
            self._spare[block.index] = []
            self._spare_acc[block.index] = []
        trained = [b for b in blocks if b.kind == Kind.PARAMETER]
        group: list[BlockSpec] = []
        for block in trained:
            if group and sum(b.nbytes for b in group) + block.nbytes > _CHUNK_NBYTES:
                self._open_chunk(spec, group)
                group = []
            group.append(block)
        if group:
            self._open_chunk(spec, group)

    def _open_chunk(self, spec: ModelSpec, blocks: list[BlockSpec]) -> None:
        groups = [spec.tensors[p.tensor].group for b in blocks for p in b.pieces]
        pieces = [piece_of(self._current[b.index].tensor, p) for b in blocks for p in b.pieces]
        self._chunks.append(_Chunk(list(blocks), PieceOptimizer(spec.optimizer, groups, pieces)))

    # ------------------------------------------------------------ sums

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        """Nothing is summed beforehand."""

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
        """Add one slot: acc = w0*g0, then acc += wi*gi, in slot order."""
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = _Sum()
        total.weight += weight
        for index, payload in payloads.items():
            block = self._blocks[index]
            value = tensor_of(cast(memoryview, payload), block.dtype)
            total.present.update(p.tensor for p in block.pieces if p.tensor not in absent)
            total.touched.add(index)
            if block.kind == Kind.LAST and key.step != INIT_STEP:
                self._take_last(total, block, absent, value)
            else:
                self._accumulate(total, index, weight, value, own=False)
        if key.step == INIT_STEP or weight == 0:
            return
        for index, block in self._blocks.items():
            # A slot that did not change a float buffer still counts with the value it started from.
            if block.kind == Kind.MEAN and index not in payloads:
                self._accumulate(total, index, weight, self._current[index].tensor.clone(), own=True)

    def _accumulate(self, total: _Sum, index: int, weight: float, value: torch.Tensor, *, own: bool) -> None:
        acc = total.acc.get(index)
        if acc is None:
            if weight == 1.0:
                total.acc[index], total.own[index] = value, own
            else:
                total.acc[index], total.own[index] = torch.mul(value, weight, out=self._room(index)), True
            return
        term = value if weight == 1.0 else value * weight
        if total.own[index]:
            acc.add_(term)
        else:
            total.acc[index], total.own[index] = torch.add(acc, term, out=self._room(index)), True

    def _take_last(self, total: _Sum, block: BlockSpec, absent: frozenset[int], value: torch.Tensor) -> None:
        acc = total.acc.get(block.index)
        if acc is None:
            acc = total.acc[block.index] = self._current[block.index].tensor.clone()
            total.own[block.index] = True
        for piece in block.pieces:
            if piece.tensor not in absent:
                piece_of(acc, piece).copy_(piece_of(value, piece))

    def _room(self, index: int) -> torch.Tensor:
        spare = self._spare_acc[index]
        return spare.pop() if spare else new_block(self._blocks[index])

    def _mean(self, total: _Sum, index: int) -> torch.Tensor:
        """The weighted mean of the slots, made in place in memory that is ours."""
        acc = total.acc[index]
        if total.weight != 1.0:
            if total.own[index]:
                acc.div_(total.weight)
            else:
                acc = total.acc[index] = torch.div(acc, total.weight, out=self._room(index))
                total.own[index] = True
        return acc

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Squared norm of the mean gradient of each parameter block, in double precision."""
        total = self._sums[key]
        if self._spec is None or self._spec.clip_norm is None or key.step == INIT_STEP or not total.weight:
            return ()
        out = []
        for index in sorted(total.touched):
            if self._blocks[index].kind == Kind.PARAMETER:
                mean = total.acc[index].double() / total.weight
                out.append((index, float(torch.dot(mean, mean))))
        return tuple(out)

    def drop(self, key: SumKey) -> None:
        """Forget a sum."""
        self._reuse(self._sums.pop(key, None))

    def _reuse(self, total: _Sum | None) -> None:
        if total is not None:
            for index, acc in total.acc.items():
                if total.own[index] and len(self._spare_acc[index]) < 2:
                    self._spare_acc[index].append(acc)

    # ------------------------------------------------------------ versions

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Make the next version beside the readable one, then switch."""
        total = self._sums.pop(key)
        self.version = commit.version
        if key.step == INIT_STEP:
            for index, value in total.acc.items():
                self._current[index].tensor.copy_(value)
            return
        if total.weight:
            for chunk in self._chunks:
                self._update(chunk, total, commit)
            for index in total.touched:
                kind = self._blocks[index].kind
                if kind == Kind.MEAN:
                    self._write_mean(index, total)
                elif kind == Kind.LAST:
                    self._write(index).tensor.copy_(total.acc[index])
        self._reuse(total)

    def _write_mean(self, index: int, total: _Sum) -> None:
        """A buffer that no slot changed keeps its bits: the rounded mean of equal values need not be that value."""
        old, mean = self._current[index].tensor, self._mean(total, index)
        new = self._write(index).tensor
        for piece in self._blocks[index].pieces:
            source = mean if piece.tensor in total.present else old
            piece_of(new, piece).copy_(piece_of(source, piece))

    def _update(self, chunk: _Chunk, total: _Sum, commit: Commit) -> None:
        weights: list[torch.Tensor] = []
        grads: list[torch.Tensor | None] = []
        for block in chunk.blocks:
            if block.index not in total.touched:
                weights += [piece_of(self._current[block.index].tensor, p) for p in block.pieces]
                grads += [None] * len(block.pieces)
                continue
            grad = self._mean(total, block.index)
            if commit.scale < 1.0:
                grad = grad.mul_(commit.scale) if total.own[block.index] else grad * commit.scale
            old = self._current[block.index].tensor
            new = self._write(block.index).tensor.copy_(old)
            for piece in block.pieces:
                weights.append(piece_of(new, piece))
                grads.append(piece_of(grad, piece) if piece.tensor in total.present else None)
        if any(g is not None for g in grads):
            chunk.own()
            chunk.optimizer.step(commit.hyper, weights, grads)

    def _write(self, index: int) -> Buffer:
        """A buffer for the next version of a block; the old one is used again once nobody needs it."""
        old = self._current[index]
        spare = self._spare[index]
        fresh = next((b for b in spare if b.idle), None)
        if fresh is None:
            fresh = Buffer(new_block(self._blocks[index]))
        else:
            spare.remove(fresh)
        self._current[index] = fresh
        self._changed[index] = self.version
        if not any(old is kept.get(index) for kept, _ in self._kept.values()):
            spare.append(old)
        return fresh

    # ------------------------------------------------------------ checkpoints

    def save(self, version: int) -> None:
        """Freeze the current version. Nothing is copied here: values are lent, and updates leave frozen state alone."""
        assert version == self.version
        self.frozen = Frozen(version, self.snapshot())
        for buffer in self._current.values():
            buffer.lend(self.frozen)
        for chunk in self._chunks:
            chunk.shared.append(self.frozen)

    def thaw(self) -> None:
        """The frozen version is written, or will never be. Its memory is used again once its reader is done."""
        self.frozen = None

    def snapshot(self) -> dict[int, BlockState]:
        """The current version with its optimizer state, by reference: good until the next `apply`."""
        taken = {index: BlockState(buffer.tensor) for index, buffer in self._current.items()}
        for chunk in self._chunks:
            for number, (index, piece) in enumerate(chunk.numbered()):
                for name, tensor in chunk.optimizer.state(number).items():
                    taken[index].state[piece, name] = tensor
        return taken

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the blocks that were just opened, one file of the checkpoint after the other."""
        assert self._spec is not None
        if self._storage is None:
            raise CheckpointError(folder, "this server was started without a place for checkpoints")
        manifest = read_manifest(self._storage, folder)
        if manifest.position.version != version:
            raise CheckpointError(folder, f"it holds version {manifest.position.version}, not {version}")
        theirs, mine = manifest.model, self._spec
        if (theirs.tensors, theirs.optimizer.name) != (mine.tensors, mine.optimizer.name):
            raise CheckpointError(folder, "it is of another model or another optimizer")
        self._fill(read_shards(self._storage, folder, manifest, self._blocks))
        self.version = version
        self._changed = dict.fromkeys(self._blocks, version)
        return {index: bytes.fromhex(manifest.chains[index]) for index in self._blocks}

    def _fill(self, states: Iterator[tuple[int, BlockState]]) -> None:
        where = {at: (chunk, number) for chunk in self._chunks for number, at in enumerate(chunk.numbered())}
        for index, state in states:
            self._current[index].tensor.copy_(state.value)
            names: dict[int, dict[str, torch.Tensor]] = {}
            for (piece, name), tensor in state.state.items():
                names.setdefault(piece, {})[name] = tensor
            for piece, tensors in names.items():
                chunk, number = where[index, piece]
                chunk.optimizer.load(number, tensors)

    def keep(self, version: int) -> None:
        """Keep the current version readable."""
        assert version == self.version
        self._kept[version] = (dict(self._current), dict(self._changed))

    def release(self, version: int) -> None:
        """Give up a kept version."""
        kept = self._kept.pop(version, None)
        if kept is None:
            return
        for index, buffer in kept[0].items():
            held = any(buffer is other.get(index) for other, _ in self._kept.values())
            if buffer is not self._current[index] and not held:
                self._spare[index].append(buffer)

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """Frames and buffers of the blocks that changed after `have`."""
        current, changed = (self._current, self._changed) if version == self.version else self._kept[version]
        frames, buffers = [], []
        for index in blocks if blocks is not None else sorted(self._blocks):
            if changed[index] > have or have < 0:
                spec = self._blocks[index]
                frames.append(BlockFrame(index, spec.dtype, spec.numel))
                buffers.append(current[index])
        return tuple(frames), buffers
