"""Looks for gradients that are not finite. Each turn looks at one share of the model, so that it costs next to nothing.

Numbers that are not finite spread: a later turn finds them in the share that it looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import torch

from paceline.types import Kind, TensorSpec

_ELEMENTS = 16_384  # a share has about this many elements at most,
_CALLS = 4  # in at most this many runs of rows, each of which takes one call of torch


class _Rows(NamedTuple):
    """Rows of a tensor: `number` of them from `start` on; the whole tensor if `number` is 0."""

    tensor: int
    start: int
    number: int


class GradientCheck:
    """The shares of a model's gradients, and what was found in them."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self._names = [t.name for t in tensors]
        self._shares = _shares(tensors)

    def find(self, gradients: Mapping[int, torch.Tensor], turn: int) -> str | None:
        """The name of a parameter whose gradient is not finite, in the share of this turn; None if there is none.

        `gradients` are by the number of their tensor. Consecutive numbers of turns look at all shares in order.
        """
        if not self._shares:
            return None
        for rows in self._shares[turn % len(self._shares)]:
            gradient = gradients.get(rows.tensor)
            if gradient is None:
                continue
            if rows.number:
                gradient = gradient.narrow(0, rows.start, rows.number)
            # A sum that is finite has finite terms. The sum of large finite terms may be infinite.
            if not isfinite(float(gradient.sum())) and not bool(torch.isfinite(gradient).all()):
                return self._names[rows.tensor]
        return None


def _shares(tensors: Sequence[TensorSpec]) -> list[list[_Rows]]:
    shares: list[list[_Rows]] = []
    left, room = 0, 0
    for number, spec in enumerate(tensors):
        if spec.kind != Kind.PARAMETER or spec.numel == 0:
            continue
        for rows, numel in _cut(number, spec):
            if not shares or not left or numel > room:
                shares.append([])
                left, room = _CALLS, _ELEMENTS
            shares[-1].append(rows)
            left, room = left - 1, room - numel
    return shares


def _cut(number: int, spec: TensorSpec) -> list[tuple[_Rows, int]]:
    """The tensor in runs of rows, each with its number of elements."""
    if spec.numel <= _ELEMENTS or spec.shape[0] == 1:
        return [(_Rows(number, 0, 0), spec.numel)]
    rows = spec.shape[0]
    row = spec.numel // rows
    step = max(1, _ELEMENTS // row)
    cuts = [(start, min(step, rows - start)) for start in range(0, rows, step)]
    return [(_Rows(number, start, count), count * row) for start, count in cuts]
