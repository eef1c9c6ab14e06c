"""Messages between coordinator and servers: which blocks a server has, the slots of a step, and commits."""

from __future__ import annotations

from paceline.messages.base import Message
from paceline.messages.work import Sealed
from paceline.types import BlockSpec, Commit, Fence, ModelSpec, Placement, Segment


class Assign(Message, frozen=True):
    """Tells a server which blocks exist, and which server holds each of them.

    With `one_attempt`, each slot counts as one attempt, the same on all servers. `hold` bounds the slots of a step that
    may wait for a lower one; 0 means that none does.

    A server enters an incarnation only by this message: it loads its blocks from the checkpoint `folder`, which holds
    `version` with the steps below `watermark` and those in `above`; without a folder its blocks are empty.

    Within an incarnation a server enters the new placement once it has applied version `at`, the last one committed
    before it. It keeps the blocks that it holds and drops all uncommitted work. A server without blocks takes from
    `begun` which steps `at` contains: all below the first number, and those in the list.
    """

    generation: int
    incarnation: int
    placement: Placement
    spec: ModelSpec
    blocks: tuple[BlockSpec, ...]
    one_attempt: bool
    hold: int = 0
    folder: str = ""
    version: int = -1
    watermark: int = 0
    above: tuple[int, ...] = ()
    at: int = -1
    begun: tuple[int, tuple[int, ...]] = (0, ())


class Plan(Message, frozen=True):
    """All segments so far: how many slots each step has, and its window.

    A plan replaces the whole of an earlier one, which has a lower `revision`. `final` is the last version of a job that
    was stopped, -1 while there may be more.
    """

    generation: int
    segments: tuple[Segment, ...]
    final: int = -1
    incarnation: int = 0
    revision: int = 0


class Summed(Message, frozen=True):
    """This server has summed the first `count` slots of a step: later slots may be leased."""

    incarnation: int
    epoch: int
    step: int
    count: int


class Receipt(Message, frozen=True):
    """Reports that this server has one attempt of a slot in full, for all of its own blocks.

    `revision` is that of the step's segment.
    """

    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence
    revision: int = 0


class Choose(Message, frozen=True):
    """Tells servers which attempt of a slot counts. The choice is void in a later placement epoch."""

    generation: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence


class Ready(Message, frozen=True):
    """Reports that this server has all gradients that its own blocks need for the step.

    `fences` are the attempts it would use; `staleness` and `lag` say how old the oldest state is they were computed on;
    `partials` are the squared norms of the mean gradient of each block (only with clip_norm). In lock-step the primary
    of block 0 adds the `reports` of the slots, so that the commit does not wait for a worker that may be dead.
    `revision` is that of the step's segment.
    """

    incarnation: int
    epoch: int
    step: int
    fences: tuple[Fence, ...]
    staleness: int
    lag: int
    partials: tuple[tuple[int, float], ...]
    reports: tuple[Sealed, ...] = ()
    revision: int = 0


class Committed(Message, frozen=True):
    """Sends a row of the commit log to a server. Servers apply commits in the order of the log.

    With `keep`, the version before this commit stays readable; with `save`, the version that the commit makes goes to a
    checkpoint. A server in another placement than `epoch` ignores the message, unless `Assign` told it to enter `epoch`
    after this commit.
    """

    generation: int
    epoch: int
    commit: Commit
    keep: bool = False
    save: bool = False


class Unpin(Message, frozen=True):
    """Allows servers to drop `version`, which does not need to stay readable any more."""

    generation: int
    incarnation: int
    version: int
