"""Threads that share the work of one update, chunk by chunk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from paceline.blocks.chunks import Chunk

T = TypeVar("T")

WORTH_NBYTES = 4 << 20
"""Least work, in bytes, for more than one thread: with less, one thread is done before another has woken up."""


class Scratch:
    """Memory of one thread for temporary results of updates. It is used again, so that it stays in the cache."""

    def __init__(self) -> None:
        self._flats: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._views: dict[tuple[str, torch.dtype, int], torch.Tensor] = {}
        self._blocks: dict[Chunk, tuple[torch.Tensor, dict[int, torch.Tensor]]] = {}

    def take(self, purpose: str, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Memory for `numel` elements. The next call with the same `purpose` returns the same memory."""
        key = (purpose, dtype, numel)
        view = self._views.get(key)
        if view is None:
            flat = self._flats.get((purpose, dtype))
            if flat is None or flat.numel() < numel:
                self._views.clear()
                flat = self._flats[purpose, dtype] = torch.empty(numel, dtype=dtype)
            view = self._views[key] = flat[:numel]
        return view

    def blocks(self, flat: torch.Tensor, chunk: Chunk) -> dict[int, torch.Tensor]:
        """The elements of each block of `chunk` in `flat`, which `take` returned (views)."""
        known = self._blocks.get(chunk)
        if known is None or known[0] is not flat:
            known = self._blocks[chunk] = flat, {index: chunk.of(flat, index) for index in chunk.blocks}
        return known[1]


class _Round(Generic[T]):
    """One call of `run`: each free thread takes the next item."""

    def __init__(self, work: Callable[[Scratch, T], None], items: Iterator[T]) -> None:
        self._work = work
        self._items = items
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def go(self, scratch: Scratch) -> None:
        """Work on items until none is left or one has failed."""
        while self._error is None:
            with self._lock:
                item = next(self._items, None)
            if item is None:
                return
            try:
                self._work(scratch, item)
            except BaseException as error:
                self._error = error

    def check(self) -> None:
        """Raise the exception of the item that failed, if one did."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class Threads:
    """The caller's thread and up to `count - 1` others, which are started when they are first needed.

    One thread works on an item from start to end, so the result does not depend on the number of threads.
    """

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._scratch = Scratch()
        self._rounds: queue.SimpleQueue[_Round[object] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._helpers: list[threading.Thread] = []

    def run(self, work: Callable[[Scratch, T], None], items: Sequence[T], nbytes: int) -> None:
        """Call `work` for all `items`, which have `nbytes` bytes together, and wait. Raises what `work` raises."""
        helpers = min(self._count, len(items)) - 1 if nbytes >= WORTH_NBYTES else 0
        if helpers < 1:
            for item in items:
                work(self._scratch, item)
            return
        while len(self._helpers) < helpers:
            thread = threading.Thread(target=self._help, name=f"paceline-apply-{len(self._helpers)}", daemon=True)
            self._helpers.append(thread)
            thread.start()
        shared = _Round(work, iter(items))
        for _ in range(helpers):
            self._rounds.put(shared)  # type: ignore[arg-type]
        shared.go(self._scratch)
        for _ in range(helpers):
            self._finished.get()
        shared.check()

    def _help(self) -> None:
        scratch = Scratch()
        while (shared := self._rounds.get()) is not None:
            shared.go(scratch)
            del shared
            self._finished.put(None)

    def close(self) -> None:
        """End the threads."""
        for _ in self._helpers:
            self._rounds.put(None)
        for thread in self._helpers:
            thread.join()
        self._helpers.clear()
