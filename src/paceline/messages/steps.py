"""How coordinator and servers agree on what a step is made of, and in which order steps are applied."""

from __future__ import annotations

from paceline.messages.base import Message
from paceline.types import BlockSpec, Commit, Fence, ModelSpec, Placement, Segment


class Assign(Message, frozen=True):
    """Which blocks exist and who holds them; a server that has none yet makes room.

    `hold` bounds the slots of a step that may wait for a lower one; 0 means that nothing does. A server enters an
    incarnation only by this message: it loads its blocks from the checkpoint `folder`, which is version `version`
    with the steps below `watermark` and those in `above`; without a folder it begins with nothing.

    Within an incarnation, a server that holds blocks enters another placement once it has applied version `at`, the
    last that was committed before: it keeps what it has of its blocks, and forgets what is not committed. `begun` are
    the steps of `at`, as the lowest that is missing and those above it, for one that has no blocks yet.
    """

    generation: int
    incarnation: int
    placement: Placement
    spec: ModelSpec
    blocks: tuple[BlockSpec, ...]
    whole: bool
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
    """This server has added the first `count` slots of a step: later ones may be leased."""

    incarnation: int
    epoch: int
    step: int
    count: int


class Receipt(Message, frozen=True):
    """This server holds one whole attempt of a slot (its blocks of it)."""

    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence


class Choose(Message, frozen=True):
    """Of the attempts of a slot, this one counts; unless the blocks have changed hands since, which voids it."""

    generation: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence


class Ready(Message, frozen=True):
    """Every block of this server has what it needs for the step.

    `fences` are the attempts it would use, `staleness` and `lag` how old the oldest state they were computed on was,
    `partials` the squared norm of the mean gradient of each of its blocks (only with clip_norm).
    """

    incarnation: int
    epoch: int
    step: int
    fences: tuple[Fence, ...]
    staleness: int
    lag: int
    partials: tuple[tuple[int, float], ...]


class Committed(Message, frozen=True):
    """A row of the commit log, to be applied in that order.

    With `keep`, the version before it stays readable; with `save`, the version that it makes goes to a checkpoint. A
    server that is not where `epoch` is has no part in it, unless it was told to go there once it has this commit.
    """

    generation: int
    epoch: int
    commit: Commit
    keep: bool = False
    save: bool = False


class Unpin(Message, frozen=True):
    """`version` need not be readable any longer."""

    generation: int
    incarnation: int
    version: int
