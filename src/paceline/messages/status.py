"""The status of a run and its summary at the end: the JSON documents in `StatusReply` and `Summary`.

The field names are those of ``paceline status --json`` and ``summary.json``. Every field has a default: a reader
accepts a document of an earlier version, and `Status()` is what a reader knows before the first reply.
"""

from __future__ import annotations

import msgspec

Number = float | str
"""A number; ``nan``, ``inf`` and ``-inf`` are strings, because JSON has no such numbers."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process that takes part in the run: start number `start` of `name`.

    `works` says that a worker has sealed a slot since this coordinator knows it, or that a server holds blocks.
    `script` says where the script of a worker is: ``before`` its first loop, ``in`` a loop, or ``after`` one. `host` is
    the name of the host on which the process runs.
    """

    name: str
    role: str
    pid: int
    node: str
    start: int = 0
    works: bool = False
    script: str = ""
    host: str = ""


class SlowestSlot(msgspec.Struct, frozen=True):
    """The slot for which the oldest uncommitted step has waited longest, and the worker that computes it."""

    step: int
    slot: int
    worker: str
    seconds: float


class ValidationStatus(msgspec.Struct, frozen=True):
    """A validation round that is open."""

    version: int
    name: str


class PlacementStatus(msgspec.Struct, frozen=True):
    """The placement in numbers.

    `servers` maps the name of a server to how many blocks it is the primary and how many it is a backup of. `short` is
    how many blocks have fewer copies than wanted, or copies on fewer hosts than possible; `building` is how many copies
    are being made.
    """

    epoch: int = 0
    blocks: int = 0
    servers: dict[str, tuple[int, int]] = {}
    short: int = 0
    building: int = 0


class ChangeStatus(msgspec.Struct, frozen=True):
    """A failover, a shrunk in-sync set or a rewind, and its cause. `number` counts them within a generation, from 1."""

    number: int
    kind: str
    why: str
    age_s: float = 0.0


class CheckpointStatus(msgspec.Struct, frozen=True):
    """The newest complete checkpoint. `age_s` is None if an earlier coordinator completed it."""

    folder: str
    version: int
    step: int
    age_s: float | None = None


class BestStatus(msgspec.Struct, frozen=True):
    """The best version by the metric of --best, and the checkpoint that has it; "" if it was not kept."""

    metric: str
    value: Number
    version: int
    folder: str = ""


class SpeedStatus(msgspec.Struct, frozen=True):
    """The speed of a worker: seconds for a slot, lately, and its part of the slots that were sealed."""

    name: str
    seconds: float
    share: float = 0.0


class SamplerStatus(msgspec.Struct, frozen=True):
    """A sampler: the slots that it has prepared, and the questions that it has answered, `late` ones after a wait.

    It keeps `ahead` slots ahead of the leases, and holds `nbytes` of batches. `behind`: more than half of its answers
    came late.
    """

    name: str
    prepared: int = 0
    served: int = 0
    late: int = 0
    ahead: int = 0
    nbytes: int = 0
    behind: bool = False


class DataWaitStatus(msgspec.Struct, frozen=True):
    """How long workers have waited for data: `seconds` in all, and the share of their time lately, also by worker."""

    seconds: float = 0.0
    share: float = 0.0
    workers: dict[str, float] = {}


class FailureStatus(msgspec.Struct, frozen=True):
    """Why the job failed."""

    kind: str
    reason: str
    trace: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run now.

    `step`, `wanted_workers` and `wanted_servers` are None only before the first reply. `pid` and `start` are those of
    the coordinator. `left` are workers that have left the job. `saving` is the version whose checkpoint is under way.
    `warning` is about the newest checkpoint, `warnings` are about the training. `metric_steps`
    has the step of the version that each metric of validation is of. `draining_hosts` shall be empty; `drained_hosts`
    are those that are: they hold no block and have no lease. `unequal` says what unequal machines mean for the bits.
    `plan` says from which step on which dials hold, if they change; `speeds` are those of the workers. `reducer` is
    "servers", "collective" (a group of workers) or "" before the blocks are placed; `moving` says what a move of the
    blocks to the other one waits for. `bad_records` counts the samples that are left out of the data. `stall` says what
    the job waits for if it makes no progress; `late_process` is the process that it waits for. `wanted_samplers` is
    None if nobody has changed the number with which the run began.
    """

    run: str = ""
    state: str = "starting"
    headline: str | None = None
    advice: str | None = None
    mode: str | None = None
    step: int | None = None
    end_step: int | None = None
    version: int = -1
    epoch: int = 0
    end_epoch: int | None = None
    samples: int = 0
    samples_per_s: float = 0.0
    slowest: SlowestSlot | None = None
    unfinished: bool = True
    logs: dict[str, Number] = {}
    metrics: dict[str, Number] = {}
    metric_steps: dict[str, int] = {}
    validating: tuple[ValidationStatus, ...] = ()
    workers_alive: int = 0
    workers: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    wanted_workers: int | None = None
    wanted_servers: int | None = None
    replicas: int = 0
    placement: PlacementStatus = PlacementStatus()
    draining: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    failovers: int = 0
    failover_s: float = 0.0
    cuts: tuple[str, ...] = ()
    changes: tuple[ChangeStatus, ...] = ()
    processes: tuple[ProcessStatus, ...] = ()
    pid: int = 0
    start: int = 0
    max_staleness: int = 0
    lost_workers: int = 0
    wasted_slots: int = 0
    generation: int = 0
    incarnation: int = 0
    rewinds: int = 0
    recomputed_steps: int = 0
    rewinding: bool = False
    checkpoint: CheckpointStatus | None = None
    saving: int | None = None
    left: tuple[str, ...] = ()
    warning: str = ""
    failure: FailureStatus | None = None
    warnings: tuple[str, ...] = ()
    draining_hosts: tuple[str, ...] = ()
    drained_hosts: tuple[str, ...] = ()
    unequal: str = ""
    slots: int | None = None
    plan: tuple[str, ...] = ()
    speeds: tuple[SpeedStatus, ...] = ()
    reducer: str = ""
    moving: str = ""
    bad_records: int = 0
    best: BestStatus | None = None
    stop_reason: str | None = None
    stall: str = ""
    late_process: str = ""
    wanted_samplers: int | None = None
    samplers: tuple[SamplerStatus, ...] = ()
    data_wait: DataWaitStatus = DataWaitStatus()


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a run. `state` is done, failed, or unfinished (steps remain, perhaps after a rewind).

    `restarts` counts the processes that the launcher started again, by role; a coordinator leaves it out.
    `metric_steps` has the step of the version that each metric of validation is of; logged values have none. `unequal`
    says what unequal machines meant for the bits; it is empty if they were equal. `plan` says from which step on which
    dials held, if they changed. `bad_records` counts the samples that were left out of the data. `stop_reason` says why
    the job ended, also where it did not end early; `best` is the best version by --best. Workers waited `data_wait_s`
    for data, which is `data_wait_share` of their time since the coordinator began; `samplers` are those at the end.
    """

    run: str = ""
    state: str = "done"
    stopped: str | None = None
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    samples_per_s: float = 0.0
    mode: str | None = None
    slots: int | None = None
    slot_batch: int | None = None
    workers: int = 0
    servers: int = 0
    replicas: int = 0
    seed: int | None = None
    threads: int | None = None
    metrics: dict[str, Number] = {}
    metric_steps: dict[str, int] = {}
    max_staleness: int = 0
    max_lag: int = 0
    skipped_slots: int = 0
    wasted_slots: int = 0
    lost_workers: int = 0
    generations: int = 0
    incarnation: int = 0
    rewinds: int = 0
    recomputed_steps: int = 0
    failovers: int = 0
    failover_s: float = 0.0
    checkpoint: str | None = None
    warning: str = ""
    digest: str | None = None
    warnings: tuple[str, ...] = ()
    restarts: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    unequal: str = ""
    plan: tuple[str, ...] = ()
    bad_records: int = 0
    stop_reason: str | None = None
    best: BestStatus | None = None
    data_wait_s: float = 0.0
    data_wait_share: float = 0.0
    samplers: tuple[SamplerStatus, ...] = ()
