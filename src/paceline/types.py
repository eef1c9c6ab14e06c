"""The basic values of the protocol, such as slots, fences, blocks and commits: frozen, with only simple arithmetic.

Everything here is a `msgspec.Struct` (or a plain alias), so the same value travels on the wire, is written to the
commit log and is compared in the simulator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

NodeId = str
"""One process, by its name and a suffix that is unique per start, such as ``worker-0/5f2c81``."""


MEMBER = "member"
"""The name of the member of ``worker-3`` is ``member-3``: the holder of blocks in the process of that worker."""


def member_name(worker: str) -> str:
    """The name of the member in the process of `worker`."""
    return f"{MEMBER}-{worker.partition('-')[2]}"


def mate_name(name: str) -> str:
    """The other name in the process of a worker or of a member; "" for any other process."""
    role, _, number = name.partition("-")
    return {"worker": f"{MEMBER}-{number}", MEMBER: f"worker-{number}"}.get(role, "") if number else ""


def is_member(node: NodeId) -> bool:
    """Whether `node` is the member of a worker, not a server."""
    return node.startswith(f"{MEMBER}-")


def name_of(node: NodeId) -> str:
    """The name of a process in its run, such as ``worker-0``."""
    return node.split("/")[0]


def start_of(node: NodeId) -> int:
    """The number of the start of this process; 0 if the node id does not contain it."""
    first = node.partition("/")[2].split("-")[0]
    return int(first) if first.isdecimal() else 0


def pid_of(node: NodeId) -> int:
    """The process id, to be shown to people; 0 if the node id does not contain it."""
    words = node.partition("/")[2].split("-")
    return int(words[1]) if len(words) == 3 and words[1].isdecimal() else 0


COORDINATOR: NodeId = "coordinator"
"""The name of the coordinator. Roles send to it under this node id, whichever process is the coordinator now."""

INIT_STEP = -1
"""The step whose only slot is the initial weights; committing it makes version 0."""

UNLIMITED = -1
"""A window without a bound (asynchronous training)."""


ITEM_NBYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""The dtypes that may be sent, each with the bytes of one element."""


class Fence(NamedTuple):
    """The name of one attempt. A later lease of a slot has a larger fence, also after a restart of the coordinator."""

    generation: int
    counter: int


class SlotId(NamedTuple):
    """The i-th micro-batch of step t."""

    step: int
    slot: int


class Kind(StrEnum):
    """How the slots of a step are combined into the next version of a tensor."""

    PARAMETER = "parameter"  # weighted mean gradient, then the optimizer
    FROZEN = "frozen"  # never changes after version 0
    MEAN = "mean"  # float buffer: weighted mean of the slots' values
    LAST = "last"  # any other buffer: the value of the last slot that changed it


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One named tensor of the model. `group` is the optimizer's param group, -1 where there is none."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    group: int = -1

    @property
    def numel(self) -> int:
        """Number of elements."""
        n = 1
        for dim in self.shape:
            n *= dim
        return n


Hyper = tuple[dict[str, float | int | bool | tuple[float, ...] | None], ...]
"""The numeric hyper-parameters of each param group, in order."""


class OptimizerSpec(msgspec.Struct, frozen=True, array_like=True):
    """The name of a `torch.optim` class, and the numeric arguments it was built with (with flags such as `fused`)."""

    name: str
    hyper: Hyper


class ModelSpec(msgspec.Struct, frozen=True, array_like=True):
    """What every worker of a job must agree on: tensors in model order (parameters, then buffers) and the optimizer."""

    tensors: tuple[TensorSpec, ...]
    optimizer: OptimizerSpec
    clip_norm: float | None = None
    deterministic: bool = True


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """`numel` elements of tensor number `tensor`, from element `start` on, which lie at `offset` in the block."""

    tensor: int
    start: int
    numel: int
    offset: int


class BlockSpec(msgspec.Struct, frozen=True, array_like=True):
    """A contiguous range of tensors of one kind and dtype: the unit of placement, push, pull and checkpoint."""

    index: int
    kind: Kind
    dtype: str
    numel: int
    nbytes: int
    pieces: tuple[Piece, ...]


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Which servers hold each block. `owners[b]` is the primary of block b; `addresses` says where each server listens.

    `backups[b]` are the other members of its in-sync set; `backups` is () if no block has any. `joining` lists (server,
    blocks) of copies that are being sent: these servers are not members of the sets yet.

    With the collective reducer, `group` are the members that reduce together in this epoch, by rank: those that were in
    every in-sync set when the epoch began. It is () with servers. A group that is `near` is on one host and shares
    memory: each worker hands its slots to all members, and each member adds all slots.
    """

    epoch: int
    owners: tuple[NodeId, ...]
    addresses: dict[NodeId, str]
    backups: tuple[tuple[NodeId, ...], ...] = ()
    joining: tuple[tuple[NodeId, tuple[int, ...]], ...] = ()
    group: tuple[NodeId, ...] = ()
    near: bool = False

    def copies(self, block: int) -> tuple[NodeId, ...]:
        """The in-sync set of `block`, its primary first."""
        return (self.owners[block], *self.backups[block]) if self.backups else (self.owners[block],)

    def owned(self, server: NodeId) -> tuple[int, ...]:
        """The blocks whose primary is `server`, in order."""
        return tuple(block for block, owner in enumerate(self.owners) if owner == server)

    @property
    def everywhere(self) -> tuple[NodeId, ...]:
        """The servers that are in the in-sync set of every block, in order of name."""
        sets = (set(self.copies(block)) for block in range(len(self.owners)))
        return tuple(sorted(set.intersection(*sets))) if self.owners else ()

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Every server that has a copy of some block, or is being sent one."""
        nodes = {*self.owners, *(server for server, _ in self.joining)}
        return tuple(sorted(nodes.union(*self.backups)))


class PhaseSpec(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of one call of `batches`. If workers give different ones, the job fails and says which.

    With `steps` above 0 the phase has that many steps, and `epochs` does not count.

    The shuffle is a full one, or by blocks of `block_size` samples and `block_window` blocks (see
    `paceline.core.shuffles`). With `weights`, a digest of them, samples are drawn by weight.
    """

    number: int
    data_len: int
    batch_size: int
    slots: int | None
    epochs: int
    shuffle: bool
    drop_last: bool
    steps: int = 0
    block_size: int = 0
    block_window: int = 0
    weights: str = ""


class DataFingerprint(msgspec.Struct, frozen=True, array_like=True):
    """What a worker sees of a data set: (position, digest) of a few samples that follow from the seed.

    `source` is the text by which a `Source` names its content, empty for a data set. Workers with the same `platform`
    (kind of CPU and versions of packages) make the same bits of the same data. `unstable` names the first sample that
    does not follow from the seed; empty if none was found.
    `files` are the files of a source with their digests; of very many files, a few stand for their neighbours.
    """

    length: int
    source: str
    platform: str
    samples: tuple[tuple[int, str], ...]
    unstable: str = ""
    files: tuple[tuple[str, str], ...] = ()


class BadRecord(msgspec.Struct, frozen=True, array_like=True):
    """Samples that are left out of every epoch, since their content is damaged: `count` of them, from `first` on."""

    first: int
    count: int
    why: str


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The position in the data and the dials from `step` on. Every change of a running job appends a segment.

    `epoch` and `offset` are the sample position at `step`. `end_step` is the end of the phase if no later segment of
    the phase follows, and `end_epoch` is the number of epochs that the job has completed there. `revision` counts the
    changes of the plan: what was leased by a segment of another revision is void (rule 19). The learning rate of every
    param group is `lr`, or what the script gives (`lr` is 0) times `lr_scale`.
    """

    step: int
    phase: int
    epoch: int
    offset: int
    end_step: int
    end_epoch: int
    data_len: int
    slots: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    window: int
    mode: str
    revision: int = 0
    lr: float = 0.0
    lr_scale: float = 1.0
    block_size: int = 0
    block_window: int = 0
    weights: str = ""


class DialChange(msgspec.Struct, frozen=True):
    """Dials to change while a job runs. A field with its default leaves its dial as it is.

    `lr` replaces the learning rates, `lr_scale` multiplies those that the script gives; a change has one of them. A
    checkpoint is due every `checkpoint_steps` versions or every `checkpoint_s` seconds; both 0: never.
    """

    mode: str = ""
    slots: int = 0
    lr: float = 0.0
    lr_scale: float = 0.0
    checkpoint_steps: int = -1
    checkpoint_s: float = -1.0


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """A row of the commit log, which makes `version`.

    `fences` names the attempt that counted for each slot; `scale` is the clip factor of the step's gradient. If all
    attempts of a slot are equal, a server may have used other ones: `variants` lists (blocks of that server, fences).
    `samples` and `empty` count the samples and the empty slots of the step.
    """

    incarnation: int
    version: int
    step: int
    fences: tuple[Fence, ...]
    hyper: Hyper
    scale: float
    pin: bool
    staleness: int
    lag: int
    samples: float = 0.0
    empty: int = 0
    variants: tuple[tuple[tuple[int, ...], tuple[Fence, ...]], ...] = ()


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """A metric over some samples: `total / count` is its mean."""

    total: float
    count: float


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """The value of a metric of validation. `step` is how many steps the version contains that was validated."""

    value: float
    step: int


class SavedFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint, with the blocks in it."""

    name: str
    size: int
    sha256: str
    blocks: tuple[int, ...]


class PhaseEntry(msgspec.Struct, frozen=True):
    """A phase that has begun: its steps are [segment.step, end). `end_version` is set once all steps are committed.

    `metrics` are what workers get when they leave the phase, None until the first worker has left it. `metric_steps`
    are the steps of their versions; a checkpoint of Paceline 0.1 has none.
    """

    spec: PhaseSpec
    segment: Segment
    end: int
    end_version: int | None = None
    metrics: dict[str, float] | None = None
    metric_steps: dict[str, int] = {}
