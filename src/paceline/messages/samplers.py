"""Messages of samplers: the batches that they prepare for workers, and what they tell the coordinator.

A batch travels as typed values: its structure in the message, its tensors in the frames that follow. Nothing is
pickled.
"""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.blocks import BlockFrame
from paceline.types import Measured, NodeId, Segment


class TensorLeaf(msgspec.Struct, frozen=True, array_like=True, tag="tensor"):
    """A tensor whose elements are the `frames` frames from number `first` on, in the order in which they lie in memory.

    `strides` is () for a tensor that is contiguous.
    """

    first: int
    frames: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()


class ValueLeaf(msgspec.Struct, frozen=True, array_like=True, tag="value"):
    """A number, a text, a truth value or None."""

    value: bool | int | float | str | None


class ListNode(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """A list."""

    items: tuple[TensorLeaf | ValueLeaf | ListNode | TupleNode | DictNode, ...]


class TupleNode(msgspec.Struct, frozen=True, array_like=True, tag="tuple"):
    """A tuple."""

    items: tuple[TensorLeaf | ValueLeaf | ListNode | TupleNode | DictNode, ...]


class DictNode(msgspec.Struct, frozen=True, array_like=True, tag="dict"):
    """A dict, in its order; its keys are texts or numbers."""

    keys: tuple[str | int, ...]
    items: tuple[TensorLeaf | ValueLeaf | ListNode | TupleNode | DictNode, ...]


Node = TensorLeaf | ValueLeaf | ListNode | TupleNode | DictNode
"""A part of the structure of a batch."""


class AskSlot(Message, frozen=True):
    """A worker asks a sampler for the batch of a slot, which it has leased.

    `data` names the phase with its data, and the packages that prepare them; `segment` has the revision. A sampler that
    has anything else refuses.
    """

    req: int
    data: str
    segment: Segment
    step: int
    slot: int


class SlotPrepared(Message, frozen=True):
    """The reply to `AskSlot`: the structure of the batch; one frame follows for each of `blocks`.

    The sampler took `seconds` to prepare it.
    """

    req: int
    structure: TensorLeaf | ValueLeaf | ListNode | TupleNode | DictNode
    blocks: tuple[BlockFrame, ...]
    seconds: float = 0.0


class SamplerWork(msgspec.Struct, frozen=True, array_like=True):
    """What a sampler has done since its start, and what it holds.

    It has `prepared` slots and answered `served` questions, `late` of them only after the worker had waited. It keeps
    `ahead` slots ahead of the leases, and holds `nbytes` of batches.
    """

    prepared: int = 0
    served: int = 0
    late: int = 0
    ahead: int = 0
    nbytes: int = 0


class SamplerBeat(Message, frozen=True):
    """A sampler shows that it lives. It is start number `start` of `name`, and listens at `address` on `host`.

    Its script is in loop number `phase`. With `evaluation` it waits for the result of that validation.
    """

    req: int
    name: str
    start: int
    host: str
    address: str
    phase: int
    work: SamplerWork
    evaluation: int = -1


class SamplerNews(Message, frozen=True):
    """The reply to `SamplerBeat`: where the job stands, as the script of a sampler sees it.

    `closed` phases are over. `state` is the job's; `metrics` are those at the end of the last closed phase. `result`
    is that of the validation that the sampler waits for, None if it is not known. `samplers` are all of them.
    """

    req: int
    generation: int
    state: str
    closed: int
    step: int
    epoch: int
    metrics: dict[str, Measured]
    samplers: tuple[tuple[NodeId, str], ...]
    result: dict[str, float] | None = None


class Samplers(Message, frozen=True):
    """Tells a worker which samplers there are, with their addresses."""

    generation: int
    samplers: tuple[tuple[NodeId, str], ...]
