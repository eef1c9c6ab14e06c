"""Updates that are made before their commit, beside the readable version: only time depends on them.

In lock-step the next weights are determined as soon as a step's gradients are there, but for the numbers that the
commit will name; these are taken to be those of the last one. What was made counts only if the commit turns out to be
of the same gradients and the same numbers; otherwise it is made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from paceline.blocks.chunk_update import ChunkUpdate
from paceline.blocks.chunks import Buffer
from paceline.blocks.sums import Sum
from paceline.blocks.threads import Scratch, Threads
from paceline.blocks.versions import Versions
from paceline.types import Commit, Hyper

_MOST_SKIPPED = 255


class _Made(NamedTuple):
    """The next version of a chunk, if it will be `total` with `weight`, as `stamps` say, on `old`, with `hyper`."""

    total: Sum
    stamps: tuple[int, ...]
    weight: float
    hyper: Hyper
    old: Buffer
    new: Buffer


class Ahead:
    """What was made ahead, by chunk. Wrong guesses make it try more and more seldom."""

    def __init__(self, versions: Versions, crew: Threads) -> None:
        self._versions = versions
        self._crew = crew
        self._made: dict[int, _Made] = {}
        self._hyper: Hyper | None = None
        self._missed = False
        self._misses = 0
        self._skip = 0

    def make(self, total: Sum, slots: int, updates: Iterable[tuple[int, ChunkUpdate]]) -> None:
        """Make the next version of those chunks of which all `slots` are in `total`, sealed or not."""
        hyper = self._hyper
        if hyper is None or self._skip:
            return
        jobs: list[tuple[int, ChunkUpdate, _Made]] = []
        nbytes = 0
        for number, update in updates:
            if not update.is_complete(total, slots):
                continue
            stamps, known = update.stamps(total), self._made.get(number)
            if known is not None:
                if known.total is total and known.stamps == stamps:
                    continue
                self._drop(number)
            weight = update.expected_weight(total)
            old, new = self._versions.current[number], self._versions.fresh(number)
            jobs.append((number, update, _Made(total, stamps, weight, hyper, old, new)))
            nbytes += update.chunk.nbytes

        def work(scratch: Scratch, job: tuple[int, ChunkUpdate, _Made]) -> None:
            number, update, made = job
            if update.ahead(total, made.weight, hyper, made.old.tensor, made.new.tensor, scratch):
                self._made[number] = made

        self._crew.run(work, jobs, nbytes)
        for number, _, made in jobs:
            if number not in self._made:
                self._versions.put_back(number, made.new)

    def take(self, number: int, update: ChunkUpdate, total: Sum, commit: Commit) -> Buffer | None:
        """The next version of a chunk of which all pieces have a gradient, if that was made already."""
        made = self._made.pop(number, None)
        if made is None:
            return None
        same = made.total is total and made.stamps == update.stamps(total) and made.weight == total.weight
        same = same and made.old is self._versions.current[number] and commit.scale >= 1.0
        if same and made.hyper == commit.hyper:
            update.accept(commit.hyper)
            self._misses = 0
            return made.new
        self._missed |= same
        self._versions.put_back(number, made.new)
        return None

    def applied(self, hyper: Hyper) -> None:
        """A commit with these numbers was applied, so what is left here is of no use."""
        self._hyper = hyper
        self._skip = max(0, self._skip - 1)
        if self._missed:
            self._skip = self._misses = min(2 * self._misses + 1, _MOST_SKIPPED)
            self._missed = False
        self.drop()

    def drop(self) -> None:
        """Nothing of what was made will count."""
        for number in list(self._made):
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._versions.put_back(number, self._made.pop(number).new)
