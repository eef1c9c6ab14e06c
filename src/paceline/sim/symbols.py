"""Symbols that replace tensors: a gradient says how it was made, the value of a block says which commits made it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.messages import BlockFrame, CopyFrame, SumMeta
from paceline.sim.disk import Disk
from paceline.types import INIT_STEP, BlockSpec, Commit, Fence, Hyper, Kind, ModelSpec, NodeId

_MARK = 1 << 61  # this bit is above every tensor number; the 61 bits below it hold step (20), slot (14), fence (4 + 23)


class Value(NamedTuple):
    """The value of a block. `version` is the last commit that changed it; `chain` stands for its bytes."""

    block: int
    version: int
    chain: int


class Flipped(Value):
    """A value with a flipped bit: equal to the true value for every check but a hash of its content."""


class Reads(NamedTuple):
    """The state on which a turn was computed: version and value of each block."""

    incarnation: int
    versions: tuple[int, ...]
    values: tuple[Value | None, ...]


class Gradient(NamedTuple):
    """The gradient of one block in one attempt. `rev` counts how often the attempt pushed it."""

    step: int
    slot: int
    fence: Fence
    block: int
    rev: int
    reads: Reads


class Buffer:
    """Memory for a gradient; the worker reuses it as soon as the core allows."""

    __slots__ = ("content",)

    def __init__(self, content: Gradient) -> None:
        self.content = content


class Term(NamedTuple):
    """One attempt as it was added to a sum."""

    step: int
    slot: int
    fence: Fence
    weight: float
    gradients: dict[int, Gradient]


def mark(step: int, slot: int, fence: Fence) -> int:
    """A number that names an attempt. The simulator sends it in the list of absent tensors."""
    return _MARK | (step + 1) << 41 | slot << 27 | fence.generation << 23 | fence.counter


def unmark(absent: frozenset[int]) -> tuple[int, int, Fence]:
    """The attempt that `mark` named."""
    number = max(absent) ^ _MARK
    fence = Fence(number >> 23 & 0xF, number & 0x7FFFFF)
    return (number >> 41) - 1, number >> 27 & 0x3FFF, fence


class Observer(Protocol):
    """A store calls these methods at each of its changes."""

    def added(self, store: SymbolStore, key: SumKey, term: Term, before: Sequence[Term]) -> None:
        """Called before `term` is added to the sum `key`, which has the terms `before`."""
        ...

    def applied(self, store: SymbolStore, key: SumKey, commit: Commit, terms: Sequence[Term]) -> None:
        """Called when `terms` became version `commit.version`; `store.current` has the new values."""
        ...

    def loaded(self, store: SymbolStore, folder: str, version: int) -> None:
        """Called when `store.current` was read from the checkpoint in `folder`."""
        ...

    def copied(self, store: SymbolStore, version: int, values: Sequence[Value]) -> None:
        """Called when blocks at `version` came from another server."""
        ...


def content_hash(value: Value) -> bytes:
    """What stands for a hash of the value's bytes."""
    return repr(value).encode()


def next_values(
    blocks: Mapping[int, BlockSpec], current: Mapping[int, Value], terms: Sequence[Term], version: int, step: int
) -> dict[int, Value]:
    """The values of all `blocks` after `terms` have made `version` from the `current` values."""
    values = dict(current)
    for index, block in blocks.items():
        used = [(p.slot, p.fence, p.weight) for p in terms if index in p.gradients]
        if not _changes(step, block.kind, bool(used), terms):
            continue
        old = values.get(index)
        chain = hash((version, step, old.chain if old else 0, tuple(used)))
        kind = Value if old is None else type(old)  # a flipped bit stays
        values[index] = kind(index, version, chain)
    return values


def _changes(step: int, kind: Kind, used: bool, terms: Sequence[Term]) -> bool:
    if step == INIT_STEP:
        return True
    if kind == Kind.MEAN:
        return any(p.weight for p in terms)
    return used and kind != Kind.FROZEN


def _term(attempt: SealedAttempt) -> Term:
    gradients = {b: p for b, p in attempt.payloads.items() if isinstance(p, Gradient)}
    return Term(*unmark(attempt.absent), attempt.weight, gradients)


class SymbolStore:
    """A `BlockStore` that keeps symbols instead of numbers."""

    def __init__(self, observer: Observer, disk: Disk, node: NodeId, at: Callable[[], tuple[int, int]]) -> None:
        """Make an empty store. `at` returns the current incarnation and placement epoch of the store's server."""
        self.observer = observer
        self.node = node
        self.at = at
        self.disk = disk
        self.frozen: tuple[int, dict[int, Value]] | None = None
        self.blocks: dict[int, BlockSpec] = {}
        self.current: dict[int, Value] = {}
        self.version = -1
        self.kept: dict[int, dict[int, Value]] = {}
        self._sums: dict[SumKey, Sequence[Term]] = {}
        self._ahead: dict[int, Value] | None = None
        self.group_sums = SymbolGroupSums(self)

    @property
    def terms(self) -> dict[SumKey, Sequence[Term]]:
        """The attempts that were added to each sum."""
        return self._sums

    @property
    def sums(self) -> SymbolStore:
        """This store itself: one object implements all parts of a `BlockStore`."""
        return self

    versions = copies = checkpoints = sums

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Forget everything, and begin with `blocks`."""
        self.blocks = {b.index: b for b in blocks}
        self.current.clear()
        self.kept.clear()
        self._sums.clear()
        self.version, self.frozen, self._ahead = -1, None, None

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Read the blocks of a checkpoint from the simulated disk."""
        self.current, chains = self.disk.read(folder, self.blocks)
        self.version = version
        self.observer.loaded(self, folder, version)
        return chains

    def save(self, version: int, without: Collection[int] = ()) -> None:
        """Freeze the current version of all blocks but those in `without`."""
        self.frozen = version, {block: value for block, value in self.current.items() if block not in without}

    def freeze(self) -> dict[int, Value]:
        """The current values."""
        return dict(self.current)

    def flip(self, block: int) -> None:
        """Flip a bit of a block."""
        self.current[block] = Flipped(*self.current[block])

    def thaw(self) -> tuple[int, dict[int, Value]]:
        """Remove the frozen version from the store and return it. The caller writes it to the simulated disk."""
        assert self.frozen is not None
        frozen, self.frozen = self.frozen, None
        return frozen

    def anticipate(
        self, key: SumKey, slot: int, fence: Fence, weight: float, payloads: Mapping[int, tuple[int, object]]
    ) -> None:
        """Do nothing: symbols need no early sums."""

    @property
    def ahead(self) -> int:
        """The version after the current one, if it can be read already; otherwise -1."""
        return -1 if self._ahead is None else self.version + 1

    def update_early(self, key: SumKey, hyper: Hyper) -> bool:
        """Make the version that the sum `key` makes readable, if the hyper-parameters are known."""
        terms = self._sums.get(key)
        self._ahead = None
        if terms is not None and hyper:
            self._ahead = next_values(self.blocks, self.current, terms, self.version + 1, key.step)
        return self._ahead is not None

    def add(self, key: SumKey, attempt: SealedAttempt) -> None:
        """Add one attempt to the sum `key`."""
        term = _term(attempt)
        terms = self._sums.get(key, ())
        self.observer.added(self, key, term, terms)
        self._sums[key] = (*terms, term)

    def partials(self, key: SumKey) -> tuple[tuple[int, float], ...]:
        """Return no norms: symbols have none."""
        return ()

    def apply(self, key: SumKey, commit: Commit) -> None:
        """Make the sum `key` the next version of each block."""
        terms = self._sums.pop(key)
        self.current = next_values(self.blocks, self.current, terms, commit.version, commit.step)
        self._ahead = None
        self.version = commit.version
        self.observer.applied(self, key, commit, terms)

    def drop(self, key: SumKey) -> None:
        """Forget the sum `key`."""
        if self._sums.pop(key, None) is not None:
            self._ahead = None

    def keep(self, version: int) -> None:
        """Keep the current version readable until `release`."""
        self.kept[version] = dict(self.current)

    def release(self, version: int) -> None:
        """Forget a kept version."""
        self.kept.pop(version, None)

    def read(
        self, version: int, have: int, blocks: Sequence[int] | None
    ) -> tuple[tuple[BlockFrame, ...], Sequence[object]]:
        """The blocks of `version` that changed after version `have`, which the reader already has."""
        early = self._ahead if version == self.version + 1 else None
        values = early if early is not None else self.current if version == self.version else self.kept[version]
        chosen = [values[b] for b in (self.blocks if blocks is None else blocks) if values[b].version > have]
        frames = tuple(BlockFrame(v.block, self.blocks[v.block].dtype, self.blocks[v.block].numel) for v in chosen)
        return frames, tuple(chosen)

    # ------------------------------------------------------------ copies on other servers

    def export(self, key: SumKey, blocks: Sequence[int]) -> tuple[SumMeta, tuple[BlockFrame, ...], Sequence[object]]:
        """All terms of the sum, each with the gradients of these blocks."""
        terms = self._sums[key]
        mine = tuple(p._replace(gradients={b: g for b, g in p.gradients.items() if b in blocks}) for p in terms)
        return SumMeta(sum(p.weight for p in terms), len(terms)), (), (mine,)

    def install(self, key: SumKey, meta: SumMeta, frames: Sequence[BlockFrame], payload: Sequence[object]) -> None:
        """Add blocks of a sum, which another server exported, to those that came before."""
        (terms,) = payload
        assert isinstance(terms, tuple)
        assert len(terms) == meta.slots
        known = self._sums.get(key, terms)
        self._sums[key] = tuple(
            old._replace(gradients=old.gradients | new.gradients) for old, new in zip(known, terms, strict=True)
        )

    def copy_out(self, blocks: Sequence[int]) -> tuple[tuple[CopyFrame, ...], Sequence[object]]:
        """The current values of `blocks`. They need no copy, because values never change."""
        frames = tuple(CopyFrame(b, -1, "", self.blocks[b].dtype, self.blocks[b].numel) for b in blocks)
        return frames, tuple(self.current[b] for b in blocks)

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Store the values of blocks that another server sent."""
        values = [value for value in payload if isinstance(value, Value)]
        self.current.update({value.block: value for value in values})
        self.version = version
        self.observer.copied(self, version, values)

    def take(self, blocks: Sequence[int]) -> object:
        """Remove `blocks` with all their versions, and return them for `put`."""
        assert not self._sums, f"blocks are taken while there are sums of {list(self._sums)}"
        self._ahead = None
        specs = {b: self.blocks.pop(b) for b in blocks}
        current = {b: self.current.pop(b) for b in blocks}
        kept = {version: {b: values.pop(b) for b in blocks if b in values} for version, values in self.kept.items()}
        return specs, current, kept

    def put(self, version: int, taken: object) -> None:
        """Add blocks that `take` removed from another store, with all their versions."""
        specs, current, kept = cast(tuple[dict[int, BlockSpec], dict[int, Value], dict[int, dict[int, Value]]], taken)
        assert not self.blocks or self.version == version
        self.version, self._ahead = version, None
        self.blocks.update(specs)
        self.current.update(current)
        for number, values in kept.items():
            self.kept.setdefault(number, {}).update(values)


class SymbolGroupSums:
    """The `GroupSums` of a store of symbols: a part is the terms that a member adds."""

    def __init__(self, store: SymbolStore) -> None:
        self._store = store

    def contribute(self, step: int, num_slots: int, attempts: Sequence[SealedAttempt]) -> tuple[Term, ...]:
        """The terms that this member adds."""
        return tuple(_term(attempt) for attempt in attempts)

    def adopt(self, key: SumKey, reduced: object, ranks: Sequence[int]) -> tuple[Fence | None, ...]:
        """Make the terms of all members the sum `key`, in slot order."""
        terms = tuple(sorted(cast(tuple[Term, ...], reduced), key=lambda term: term.slot))
        for number, term in enumerate(terms):
            self._store.observer.added(self._store, key, term, terms[:number])
        self._store.install(key, SumMeta(sum(term.weight for term in terms), len(terms)), (), (terms,))
        by_slot = [[term.fence for term in terms if term.slot == slot] for slot in range(len(ranks))]
        return tuple(fences[0] if len(fences) == 1 else None for fences in by_slot)
