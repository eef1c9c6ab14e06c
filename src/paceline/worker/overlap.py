"""Blocks leave while backward still runs: when that pays, and what is sent when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from paceline.types import BlockSpec, Kind
from paceline.worker.binding import Binding
from paceline.worker.pushes import Pushes

SMALLEST_NBYTES = 8 << 20
"""Gradients smaller than this are sent at the seal: messages would cost more than the overlap gains."""

_GROUP_NBYTES = 4 << 20  # sent in one message a server, at most
_GROUPS = 8  # in a model that is smaller than so many of them
_PATIENCE = 8  # turns in which something had to be sent twice


def pays(nbytes: int, addresses: Iterable[str], cores: int, busy: int) -> bool:
    """Whether to send gradients of `nbytes` ahead to servers at `addresses`, where workers keep `busy` of the `cores`.

    What is sent ahead must be compared with the final gradient at the seal, since a script may change it unseen. That
    time is won back only if the server's work runs beside backward: on another host, or on a core that no worker uses.
    """
    return nbytes >= SMALLEST_NBYTES and (cores > busy or not all(map(_is_here, addresses)))


def _is_here(address: str) -> bool:
    host = address.rpartition("://")[2]
    return host.startswith(("127.", "localhost:", "[::1]:")) or not address.startswith("tcp://")


class Overlap:
    """Watches the gradients of a model appear, and sends the blocks that are complete. Close it to stop watching.

    `active` says whether the script is in the part of a turn in which gradients count. A script whose gradients change
    after backward, turn after turn (by clipping, say), is left alone after a while.
    """

    def __init__(self, binding: Binding, pushes: Pushes, active: Callable[[], bool]) -> None:
        self._pushes = pushes
        self._active = active
        self._thread = threading.get_ident()
        self._regrets = 0
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
            e.tensor.register_post_accumulate_grad_hook(partial(self._made, e.number))  # type: ignore[no-untyped-call]
            for e in binding.parameters
            if e.tensor.requires_grad
        ]

    def begin(self) -> None:
        """A turn begins."""
        self._missing = dict(self._needed)
        self._seen.clear()
        self._ready.clear()
        self._nbytes = 0

    def sealed(self) -> None:
        """A turn was sealed: was it worth it?"""
        if self._pushes.resent:
            self._regrets += 1
            if self._regrets >= _PATIENCE:
                self.close()

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _made(self, number: int, tensor: torch.Tensor) -> None:
        """The gradient of a parameter is there. A second backward may add to it: the seal notices."""
        if number in self._seen or not self._active() or threading.get_ident() != self._thread:
            return
        self._seen.add(number)
        for block in self._of.get(number, ()):
            self._missing[block.index] -= 1
            if not self._missing[block.index]:
                self._ready.append(block)
                self._nbytes += block.nbytes
        if self._nbytes >= self._group_nbytes:
            self._send()

    def _send(self) -> None:
        values = self._values()
        if values is not None:
            group: list[BlockSpec] = []
            nbytes = 0
            for block in self._ready:
                group.append(block)
                nbytes += block.nbytes
                if nbytes >= self._group_nbytes:
                    self._pushes.send_ahead(values, group)
                    group, nbytes = [], 0
            if group:
                self._pushes.send_ahead(values, group)
        self._ready.clear()
        self._nbytes = 0

    def _values(self) -> Mapping[int, torch.Tensor] | None:
        """The gradients of what is ready; None if one of them went away again, or is not dense."""
        values = {}
        for number in {p.tensor for b in self._ready for p in b.pieces}:
            grad = self._entries[number].tensor.grad
            if grad is None or grad.layout is not torch.strided:
                return None
            values[number] = grad.detach().reshape(-1)
        return values
