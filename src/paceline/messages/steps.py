"""Between coordinator and servers: the blocks of a server, the slots of a step, and the order of commits."""

from __future__ import annotations

from paceline.messages.base import Message
from paceline.types import BlockSpec, Commit, Fence, ModelSpec, Placement, Segment


class Assign(Message, frozen=True):
    """Which blocks exist, and which server holds which.

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
    """This server has one whole attempt of a slot, as far as its blocks go."""

    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence


class Choose(Message, frozen=True):
    """This attempt of the slot counts. A later placement epoch voids the choice."""

    generation: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence


class Ready(Message, frozen=True):
    """Every block that this server owns has what it needs for the step.

    `fences` are the attempts it would use; `staleness` and `lag` are the age of the oldest state they were computed on;
    `partials` are the squared norms of the mean gradient of each block (only with clip_norm).
    """

    incarnation: int
    epoch: int
    step: int
    fences: tuple[Fence, ...]
    staleness: int
    lag: int
    partials: tuple[tuple[int, float], ...]


class Committed(Message, frozen=True):
    """A row of the commit log. Servers apply commits in the order of the log.

    With `keep`, the version before it stays readable; with `save`, the version that it makes goes to a checkpoint. A
    server in another placement than `epoch` ignores it, unless `Assign` told it to enter `epoch` after this commit.
    """

    generation: int
    epoch: int
    commit: Commit
    keep: bool = False
    save: bool = False


class Unpin(Message, frozen=True):
    """Servers may drop `version`: no pin keeps it readable."""

    generation: int
    incarnation: int
    version: int
