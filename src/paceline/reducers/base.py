"""The protocol of a reducer: how a turn hands over its gradients, and how the model gets its next state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.core.worker.turn import Task
from paceline.messages import Grant, Sealed
from paceline.types import BlockSpec


@dataclass(frozen=True, slots=True)
class Carried:
    """Which blocks a turn sends. `absent` tensors have no gradient or no change.

    `blocks` have at least one tensor that is not absent; `gaps` are the absent tensors in them.
    """

    absent: frozenset[int]
    blocks: tuple[BlockSpec, ...]
    gaps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a turn: its gradients and changed buffers, by tensor number.

    The tensors belong to the script. A reducer that needs their content after its call has returned must copy it.
    """

    values: Mapping[int, torch.Tensor]
    carried: Carried


class Reducer(Protocol):
    """Hands over gradients and reads versions, in one worker. All calls come from the script's thread.

    The order of calls: `read` for a task; if the task is a training lease, `begin`, any number of `offer`, and `seal`;
    then `read` for the next task. After a failover the slot of the last turn, or of the one before, may be leased
    again: then `seal_again` is called instead of `begin`, `offer` and `seal`. A turn that is abandoned has no `seal`.
    """

    @property
    def wants_offers(self) -> bool:
        """False once offers cost more than they gain; the worker then stops calling `offer`."""
        ...

    def begin(self, grant: Grant, weight: float, *, keep: bool = False) -> None:
        """Begin the turn of `grant`, whose slot has `weight` in the step. Offers that were not sealed are void.

        With `keep`, the content of the last seal stays in memory until the next call: its step may not be committed.
        """
        ...

    def offer(self, values: Mapping[int, torch.Tensor], blocks: Sequence[BlockSpec]) -> None:
        """Hand over `blocks` of gradients before the seal, while the script may still change them.

        Never waits. `values` are one-dimensional gradients by tensor number; none is read after the call.
        """
        ...

    def seal(self, made: Made | None, report: Sealed) -> None:
        """End the turn: the present content of `made` counts, whatever was offered. None seals the slot empty.

        Never waits. Nothing of `made` is read after the call, so the script may overwrite its gradients. `report` goes
        with the seal. In the turn of the initial lease (`INIT_STEP`) `made` has every tensor of the model; they become
        version 0.
        """
        ...

    def seal_again(self, report: Sealed, *, kept: bool = False) -> None:
        """Hand over the content of the last `seal` again, for a new lease of the same slot. Never waits.

        With `kept`, that of the seal before, which `begin` has kept.
        """
        ...

    def read(self, task: Task) -> None:
        """Wait until the model has the state that `task` needs. The model does not change outside of this call.

        If the coordinator replaces the task meanwhile, the model gets the state for the new task instead.

        Raises:
            JobError: the job has ended.
            DeadlineError: the coordinator was silent for too long.
        """
        ...
