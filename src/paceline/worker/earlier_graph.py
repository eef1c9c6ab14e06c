"""Finds state that a script carries from turn to turn, where torch shows it: in the graph of a loss.

A tensor that was detached, and a number in a Python variable, leave no trace there.
"""

from __future__ import annotations

from typing import Any

import torch

_NODES = 20_000  # the most nodes of a graph that are looked at

TEXT = (
    "depends on tensors that were computed before this turn, such as a hidden state. Other workers compute other "
    "turns, so the result depends on the number of workers: begin such state anew in each turn"
)


def next_number() -> int:
    """The number that torch gives to the next node of a graph in this thread. A node that was made before has less."""
    with torch.enable_grad():
        made: Any = torch.zeros((), requires_grad=True) * 1
    return int(made.grad_fn._sequence_nr()) + 1


def reaches_before(value: torch.Tensor, first: int) -> bool:
    """Whether the graph of `value` has a node that was made before the one with number `first`."""
    todo: list[Any] = [value.grad_fn]
    seen: set[Any] = set()
    while todo and len(seen) < _NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = getattr(node, "_sequence_nr", None)
        if number is not None and number() < first:
            return True
        todo += [following for following, _ in node.next_functions]
    return False
