"""What a script says of its model for predictions: how to build it, and an example of its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import UsageError

Example = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Servable:
    """`factory` builds the model, without arguments; `example` is an input for it, with the rows first.

    A sequence has the positional arguments of `forward`, a mapping its arguments by name.
    """

    factory: Callable[[], torch.nn.Module]
    example: Example


def servable(factory: object, example: Any) -> Servable:
    """Check the arguments of `job.servable`.

    Raises:
        UsageError: `factory` cannot be called, or `example` is no input.
    """
    if isinstance(factory, torch.nn.Module) or not callable(factory):
        raise UsageError(
            f"job.servable takes a function that builds the model, such as its class, not {type(factory).__name__}: "
            "write job.servable(lambda: Model(width), example)"
        )
    tensors = list(example.values()) if isinstance(example, Mapping) else example
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    if not isinstance(tensors, Sequence) or not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        raise UsageError("the example of job.servable is a tensor, a tuple of tensors, or a dictionary of tensors")
    for tensor in tensors:
        if tensor.dim() > 0 and tensor.shape[0] < 1:
            raise UsageError("the example of job.servable has no rows: give an input of one row or more")
    return Servable(factory, example)
