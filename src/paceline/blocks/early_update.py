"""Updates that are computed before their commit, in other memory than the readable version.

In lock-step the next weights follow from the gradients of a step and from the hyper-parameters. Before the gradients
are sealed the hyper-parameters of the last commit are taken as a guess; the seals have the true ones. An early update
counts only if the commit has the same gradients and hyper-parameters; otherwise the update is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from paceline.blocks.chunk_update import ChunkUpdate
from paceline.blocks.chunks import Buffer
from paceline.blocks.sums import Sum
from paceline.blocks.threads import Scratch, Threads
from paceline.blocks.versions import Versions
from paceline.types import Commit, Hyper

Changed = Mapping[int, tuple[Buffer, Collection[int]]]
"""New buffers of chunks, by the number of the chunk, each with the blocks that differ from the current version."""

_MAX_PAUSE = 255  # the longest pause after wrong guesses, in commits


class _Made(NamedTuple):
    """The next version of a chunk, `new`, and what it was computed from.

    That is the version `old`, and the gradients that were in `total` when its blocks had these `stamps`.
    """

    total: Sum
    stamps: tuple[int, ...]
    weight: float
    hyper: Hyper
    old: Buffer
    new: Buffer


class EarlyUpdates:
    """Early updates by chunk. Each wrong guess of the hyper-parameters doubles the pause before the next attempt."""

    def __init__(self, versions: Versions, threads: Threads) -> None:
        self._versions = versions
        self._threads = threads
        self.reset()

    def reset(self) -> None:
        """Forget all early updates: the store has opened other blocks."""
        self._made: dict[int, _Made] = {}
        self._buffers: tuple[Sum, Changed] | None = None
        self._hyper: Hyper | None = None
        self._missed = False
        self._misses = 0
        self._pause = 0

    def make(self, total: Sum, slots: int, updates: Iterable[tuple[int, ChunkUpdate]], known: Hyper = ()) -> None:
        """Compute the next version of each chunk whose blocks have all `slots` gradients in `total`, sealed or not.

        `known` are the hyper-parameters of the seals; without them, those of the last commit are a guess.
        """
        hyper = known or self._hyper
        if hyper is None or (self._pause and not known):
            return
        jobs: list[tuple[int, ChunkUpdate, _Made]] = []
        nbytes = 0
        for number, update in updates:
            if not update.is_complete(total, slots):
                continue
            stamps, made = update.stamps(total), self._made.get(number)
            if made is not None:
                if made.total is total and made.stamps == stamps and made.hyper == hyper:
                    continue
                self._drop(number)
            weight = update.expected_weight(total)
            old, new = self._versions.current[number], self._versions.fresh(number)
            jobs.append((number, update, _Made(total, stamps, weight, hyper, old, new)))
            nbytes += update.chunk.nbytes

        def work(scratch: Scratch, job: tuple[int, ChunkUpdate, _Made]) -> None:
            number, update, made = job
            if update.run_early(total, made.weight, hyper, made.old.tensor, made.new.tensor, scratch):
                self._made[number] = made

        self._threads.run(work, jobs, nbytes)
        for number, _, made in jobs:
            if number not in self._made:
                self._versions.put_back(number, made.new)

    def find(self, number: int, update: ChunkUpdate, total: Sum, hyper: Hyper) -> Buffer | None:
        """The early update of a chunk from all gradients of `total`, which has every slot; None if there is none."""
        made = self._made.get(number)
        if made is None or made.total is not total or not update.is_complete(total, total.slots):
            return None
        same = (made.stamps, made.weight, made.hyper) == (update.stamps(total), total.weight, hyper)
        return made.new if same else None

    def keep_buffers(self, total: Sum, made: Changed) -> None:
        """Keep the next version of the chunks of model buffers, which were made from `total`."""
        self._buffers = total, made

    def take_buffers(self, total: Sum) -> Changed | None:
        """What `keep_buffers` has kept of `total`; None if there is nothing."""
        if self._buffers is None or self._buffers[0] is not total:
            return None
        made, self._buffers = self._buffers[1], None
        return made

    def take(self, number: int, update: ChunkUpdate, total: Sum, commit: Commit) -> Buffer | None:
        """The early update of a chunk in which all pieces have a gradient; None if it must be computed now."""
        made = self._made.pop(number, None)
        if made is None:
            return None
        same = made.total is total and made.stamps == update.stamps(total) and made.weight == total.weight
        same = same and made.old is self._versions.current[number] and commit.scale >= 1.0
        if same and made.hyper == commit.hyper:
            update.accept_early(commit.hyper)
            self._misses = 0
            return made.new
        self._missed |= same
        self._versions.put_back(number, made.new)
        return None

    def applied(self, hyper: Hyper) -> None:
        """Note that a commit with these hyper-parameters is applied, and drop the early updates that it did not use."""
        self._hyper = hyper
        self._pause = max(0, self._pause - 1)
        if self._missed:
            self._pause = self._misses = min(2 * self._misses + 1, _MAX_PAUSE)
            self._missed = False
        self.drop()

    def drop(self) -> None:
        """Drop all early updates: none of them will count."""
        for number in list(self._made):
            self._drop(number)
        for number, (buffer, _) in () if self._buffers is None else self._buffers[1].items():
            self._versions.put_back(number, buffer)
        self._buffers = None

    def _drop(self, number: int) -> None:
        self._versions.put_back(number, self._made.pop(number).new)
