"""Pushes gradients while backward still runs: decides whether that pays, and offers complete blocks to the reducer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from paceline.reducers.base import Reducer
from paceline.types import BlockSpec, Kind
from paceline.worker.binding import Binding

SMALLEST_NBYTES = 8 << 20
"""Gradients smaller than this are sent at the seal: messages would cost more than the overlap gains."""

_GROUP_NBYTES = 4 << 20  # a group of blocks is offered when it reaches this size
_GROUPS = 8  # a small model is offered in this many groups, each smaller than that size


def pays(nbytes: int, addresses: Iterable[str], cores: int, busy: int) -> bool:
    """Whether to send gradients of `nbytes` ahead to servers at `addresses`, while workers keep `busy` of the `cores`.

    It costs time: the seal must compare what was sent ahead with the final gradient. It gains time only if the server
    works while backward runs: on another host, or on a core that no worker uses.
    """
    return nbytes >= SMALLEST_NBYTES and (cores > busy or not all(map(_is_here, addresses)))


def _is_here(address: str) -> bool:
    host = address.rpartition("://")[2]
    return host.startswith(("127.", "localhost:", "[::1]:")) or not address.startswith("tcp://")


class Overlap:
    """Offers each block to a reducer as soon as all its gradients are there. Close it to stop.

    `is_open` says whether the turn is not sealed yet. The overlap closes itself once the reducer wants no offers: then
    the script changes its gradients after backward in many turns (by clipping, say).
    """

    def __init__(self, binding: Binding, reducer: Reducer, is_open: Callable[[], bool]) -> None:
        self._reducer = reducer
        self._is_open = is_open
        self._thread = threading.get_ident()
        self._entries = binding.entries
        trained = [b for b in binding.blocks if b.kind == Kind.PARAMETER]
        self._group_nbytes = min(_GROUP_NBYTES, sum(b.nbytes for b in trained) // _GROUPS)
        self._needed = {b.index: len({p.tensor for p in b.pieces}) for b in trained}
        self._of: dict[int, list[BlockSpec]] = {}
        for block in trained:
            for tensor in dict.fromkeys(p.tensor for p in block.pieces):
                self._of.setdefault(tensor, []).append(block)
        self._missing: dict[int, int] = {}
        self._seen: set[int] = set()
        self._ready: list[BlockSpec] = []
        self._nbytes = 0
        self._handles: list[Any] = [
            e.tensor.register_post_accumulate_grad_hook(partial(self._on_gradient, e.number))  # type: ignore[no-untyped-call]
            for e in binding.parameters
            if e.tensor.requires_grad
        ]

    def begin(self) -> None:
        """Begin a turn: no gradient is there."""
        self._missing = dict(self._needed)
        self._seen.clear()
        self._ready.clear()
        self._nbytes = 0

    def end(self) -> None:
        """End a turn, which was sealed; stop if the reducer wants no more offers."""
        if not self._reducer.wants_offers:
            self.close()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_gradient(self, number: int, tensor: torch.Tensor) -> None:
        """Note that parameter `number` has its gradient. A second backward may add to it; the seal finds that out."""
        if number in self._seen or not self._is_open() or threading.get_ident() != self._thread:
            return
        self._seen.add(number)
        for block in self._of.get(number, ()):
            self._missing[block.index] -= 1
            if not self._missing[block.index]:
                self._ready.append(block)
                self._nbytes += block.nbytes
        if self._nbytes >= self._group_nbytes:
            self._offer()

    def _offer(self) -> None:
        values = self._values()
        if values is not None:
            group: list[BlockSpec] = []
            nbytes = 0
            for block in self._ready:
                group.append(block)
                nbytes += block.nbytes
                if nbytes >= self._group_nbytes:
                    self._reducer.offer(values, group)
                    group, nbytes = [], 0
            if group:
                self._reducer.offer(values, group)
        self._ready.clear()
        self._nbytes = 0

    def _values(self) -> Mapping[int, torch.Tensor] | None:
        """The gradients of the blocks that are ready; None if a gradient was removed since, or is not dense."""
        values = {}
        for number in {p.tensor for b in self._ready for p in b.pieces}:
            grad = self._entries[number].tensor.grad
            if grad is None or grad.layout is not torch.strided:
                return None
            values[number] = grad.detach().reshape(-1)
        return values
