"""Messages of the collective reducer: the closing of a step, the rendezvous of a group, and its end by an error."""

from __future__ import annotations

from paceline.messages.base import Message
from paceline.types import Fence, NodeId


class Close(Message, frozen=True):
    """To each member of a group: the attempt of each slot of a step that counts, and the member that has it (rule 17).

    `fences` and `members` are in slot order. `revision` is that of the segment by which the slots were leased (rule
    19). A step has one closing in an epoch. Repeated on a heartbeat until the step is committed.
    """

    generation: int
    incarnation: int
    epoch: int
    step: int
    fences: tuple[Fence, ...]
    members: tuple[NodeId, ...]
    revision: int = 0


class Meet(Message, frozen=True):
    """From a member: `value` is to be found under `key` by the other members of the group of `epoch`.

    Repeated with each heartbeat until the group is connected.
    """

    incarnation: int
    epoch: int
    key: str
    value: bytes


class Met(Message, frozen=True):
    """To a member: what another member of the group of `epoch` has sent with `Meet`."""

    generation: int
    incarnation: int
    epoch: int
    key: str
    value: bytes


class Broken(Message, frozen=True):
    """From a member: the group of `epoch` cannot reduce any more; `reason` says why. Repeated until the next epoch."""

    incarnation: int
    epoch: int
    reason: str
