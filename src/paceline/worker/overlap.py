"""Hands gradients to the reducer while backward still runs: when that pays, and which blocks when."""

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

_GROUP_NBYTES = 4 << 20  # offered at once, at most
_GROUPS = 8  # offers of a model that is smaller than so many full ones


def pays(nbytes: int, addresses: Iterable[str], cores: int, busy: int) -> bool:
    """Whether to send gradients of `nbytes` ahead to servers at `addresses`, while workers keep `busy` of the `cores`.

    The seal must compare what was sent ahead with the final gradient, since a script may change it unseen. That time
    is won back only if the server works beside backward: on another host, or on a core that no worker uses.
    """
    return nbytes >= SMALLEST_NBYTES and (cores > busy or not all(map(_is_here, addresses)))


def _is_here(address: str) -> bool:
    host = address.rpartition("://")[2]
    return host.startswith(("127.", "localhost:", "[::1]:")) or not address.startswith("tcp://")


class Overlap:
    """Watches the gradients of a model appear, and offers the complete blocks to a reducer. Close it to stop.

    `is_open` says whether the script is in the part of a turn in which gradients count. It closes itself once the
    reducer wants no offers: the script changes its gradients after backward (by clipping, say), turn after turn.
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
        """A turn begins."""
        self._missing = dict(self._needed)
        self._seen.clear()
        self._ready.clear()
        self._nbytes = 0

    def end(self) -> None:
        """A turn was sealed."""
        if not self._reducer.wants_offers:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_gradient(self, number: int, tensor: torch.Tensor) -> None:
        """A parameter has its gradient. A second backward may add to it: the seal compares."""
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
        """The gradients of the blocks that are ready; None if one of them is gone again, or not dense."""
        values = {}
        for number in {p.tensor for b in self._ready for p in b.pieces}:
            grad = self._entries[number].tensor.grad
            if grad is None or grad.layout is not torch.strided:
                return None
            values[number] = grad.detach().reshape(-1)
        return values
