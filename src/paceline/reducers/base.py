"""The reducer seam: how a turn hands its gradients over, and how the model gets its next state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.core.worker.turn import Task
from paceline.messages import Grant
from paceline.types import BlockSpec


@dataclass(frozen=True, slots=True)
class Carried:
    """What follows from the set of `absent` tensors: the `blocks` that carry anything, and the `gaps` in them."""

    absent: frozenset[int]
    blocks: tuple[BlockSpec, ...]
    gaps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """What a turn made: gradients and changed buffers by tensor number, as the script left them.

    The tensors belong to the script: a reducer that needs their content after the call copies it.
    """

    values: Mapping[int, torch.Tensor]
    carried: Carried


class Reducer(Protocol):
    """One worker's side of a reducer. All calls come from the script's thread.

    The order of calls: `read` for a task; if the task is a training lease, `begin`, any number of `offer`, and `seal`;
    then `read` for the next task. After a failover the lease may come back: then `seal_again` stands for all of
    `begin` to `seal`. A turn that is given up has no `seal`.
    """

    @property
    def wants_offers(self) -> bool:
        """False once offers cost more than they gain; the worker then stops calling `offer`."""
        ...

    def begin(self, grant: Grant, weight: float) -> None:
        """Begin the turn of `grant`, whose slot counts with `weight`. Offers of a turn without a seal are void."""
        ...

    def offer(self, values: Mapping[int, torch.Tensor], blocks: Sequence[BlockSpec]) -> None:
        """Hand over `blocks` of gradients before the seal, while the script may still change them.

        Never waits. `values` are flat gradients by tensor number; nothing of them is read after the call.
        """
        ...

    def seal(self, made: Made | None) -> None:
        """End the turn: `made` counts as it is now, whatever was offered. None seals the slot empty.

        Never waits. Nothing of `made` is read after the call, so the script may overwrite its gradients. In the turn
        of the initial lease (`INIT_STEP`) `made` has every tensor of the model, and becomes version 0.
        """
        ...

    def seal_again(self) -> None:
        """Hand over the content of the last `seal` once more, for the current lease of the same slot. Never waits."""
        ...

    def read(self, task: Task) -> None:
        """Bring the model to the state that `task` needs. Blocks; the model does not change outside of this call.

        Returns as well when the coordinator has replaced the task meanwhile: the caller then looks at the new one.

        Raises:
            JobError: the job has ended.
            DeadlineError: the coordinator was silent for too long.
        """
        ...
