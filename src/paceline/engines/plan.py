"""The plan of a run: the script, the number of processes and all options. The run directory keeps it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from paceline.checkpoint.storage import open_storage
from paceline.config import load
from paceline.config.dials import ClusterSpec, check_replicas
from paceline.config.live import parse_every, parse_schedule, parse_slots
from paceline.config.policies import PolicySpec, parse_best, parse_plateau, parse_time
from paceline.config.role_spec import LogSpec, RoleSpec, ServerSpec, SharedSpec
from paceline.core.files.manifest import LIMIT_NBYTES
from paceline.engines.host_options import LOCAL_HOST, HostOptions
from paceline.engines.role_runner import Place
from paceline.errors import UsageError
from paceline.runtime.addresses import check_address
from paceline.runtime.roles import Launch, role_of
from paceline.runtime.rundir import RunDir

_PATHS = ("script", "cwd", "trace")
_NOT_KEPT = ("run", "summary", "resume", "allow_changes", "token_file", "adopt")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to run. `mode`, `slots` and `seed` override the arguments of the script; None does not.

    `resume` is None for a new run. To resume the run in the directory `run`, it is the folder of the checkpoint to
    begin from, or "" to begin without a checkpoint. `checkpoints` is the place of the checkpoints; None means the run
    directory. `files_limit` is the largest sum of the user's files, in MiB. With `trace`, the roles record what they
    do. `env` has variables for workers, used where the environment does not set them. With a `module`, `script` is its
    file, and workers run it as `python -m` does. `fingerprint` has a hash of each file of the code with which the run
    began; None if that is not known. With `allow_changes`, a resumed run may have other data than before. `term` and
    `term_key` say by which term the run holds `checkpoints`, and `files` is the digest of the user's files there. With
    `hosts`, the roles run on several hosts, whose agents prove the token in `token_file`. With `adopt`, the roles of
    `run` still run, and only its launcher is new.
    """

    script: Path
    module: str = ""
    arguments: Sequence[str] = ()
    cwd: Path | None = None
    workers: int = 2
    servers: int = 1
    samplers: int = 0
    replicas: int = 0
    mode: str | None = None
    insecure_collective: bool = False
    ordered: bool = False
    slots: int | str | None = None
    seed: int | None = None
    threads: int = 1
    checkpoint_every: str = "30s"
    keep: int = 3
    checkpoints: str | None = None
    files_limit: int = LIMIT_NBYTES >> 20
    max_restarts: int = 5
    max_steps: int = 0
    max_epochs: int = 0
    max_samples: int = 0
    max_time: str | None = None
    target: str | None = None
    patience: int = 0
    min_delta: float = 0.0
    plateau: str | None = None
    best: str | None = None
    keep_best: int = 1
    on_nan: str = "warn"
    tensorboard: bool = False
    metrics_port: int | None = None
    log_level: str = "warning"
    log_format: str = "text"
    run: Path
    summary: Path | None = None
    trace: Path | None = None
    resume: str | None = None
    allow_changes: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Mapping[str, str] | None = None
    hosts: HostOptions | None = None
    token_file: Path | None = None
    adopt: bool = False
    term: int = 0
    term_key: str = ""
    files: str = ""

    def __post_init__(self) -> None:
        if not self.script.is_file():
            raise UsageError(f"{self.script} is not a file")
        modes = [] if self.mode is None else [row.mode for row in parse_schedule(self.mode)]
        for name in ("workers", *(() if is_serverless(self.mode) else ("servers",)), "threads", "keep", "files_limit"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        for name in ("max_restarts", "max_steps", "samplers"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} must be 0 or more, not {getattr(self, name)}")
        if any(mode.in_group for mode in modes) and not self.insecure_collective:
            raise UsageError(
                f"--mode {self.mode} sends gradients between workers by Gloo, whose connections are neither "
                "authenticated nor encrypted: whoever reaches these hosts can read and change them. Add "
                "--insecure-collective if you trust the network and the users of these machines, or use servers "
                "(--mode bsp)"
            )
        if self.servers or self.replicas:
            check_replicas(self.replicas, self.servers)
        if self.ordered and not self.collective:
            raise UsageError("--ordered is for --mode allreduce: with servers, slots are always added in order")
        if self.slots is not None:
            parse_slots(self.slots)
        if not any(parse_every(self.checkpoint_every)) and self.best is not None:
            raise UsageError("--best keeps checkpoints, but --checkpoint-every is 0: leave one of them out")
        if self.best is None and self.keep_best != 1:
            raise UsageError(f"--keep-best {self.keep_best} needs --best METRIC, which says what is good")
        self.policies.check()
        if self.metrics_port is not None and not 0 <= self.metrics_port < 65536:
            raise UsageError(f"--metrics-port must be a port, or 0 for any free one, not {self.metrics_port}")
        LogSpec(self.log_level, self.log_format)
        if self.checkpoints is not None:
            open_storage(self.checkpoints)
        if self.hosts is not None:
            self._check_hosts(self.hosts)
        for option in ("summary", "trace"):
            if (file := getattr(self, option)) is not None:
                _check_writable(f"--{option}", file)

    @property
    def collective(self) -> bool:
        """Whether each worker hosts a member, so that the run can sum the slots of a step among its workers."""
        return self.insecure_collective

    def _check_hosts(self, hosts: HostOptions) -> None:
        if hosts.min_hosts <= self.replicas and not hosts.local_roles:
            raise UsageError(
                f"--replicas {self.replicas} keeps each copy of a block on another host: it needs --min-hosts "
                f"{self.replicas + 1} or more, not {hosts.min_hosts}"
            )

    @property
    def name(self) -> str:
        """The name of the script or the module, without its folders or packages: run directories are named after it."""
        return self.module.rpartition(".")[2] or self.script.stem

    @property
    def code_root(self) -> Path:
        """The directory from which the script imports its own modules."""
        return (self.cwd or Path.cwd()) if self.module else self.script.resolve().parent

    @property
    def cluster(self) -> ClusterSpec:
        """The coordinator's settings at the first start of the run."""
        steps, seconds = parse_every(self.checkpoint_every)
        return ClusterSpec(
            workers=self.workers,
            servers=self.servers,
            replicas=self.replicas,
            collective=self.collective,
            shares_memory=load.local_lane(),
            heartbeat_timeout_s=load.heartbeat_timeout_s(),
            reach_s=load.reach_s(),
            checkpoint_steps=steps,
            checkpoint_s=seconds,
            keep_checkpoints=self.keep,
            rewinds=True,
            resume=self.resume,
            allow_changes=self.allow_changes,
            same_cpu=self.hosts is not None and self.hosts.same_cpu,
            max_steps=self.max_steps,
            term=self.term,
            policies=self.policies,
            tensorboard=self.tensorboard,
            metrics_port=self.metrics_port,
        )

    @property
    def policies(self) -> PolicySpec:
        """What ends or changes the job by what it has done and by its results, as the options say."""
        metric, larger = parse_best(self.best) if self.best is not None else ("", None)
        plateau, factor = parse_plateau(self.plateau) if self.plateau is not None else (0, 0.5)
        return PolicySpec(
            max_epochs=self.max_epochs,
            max_samples=self.max_samples,
            max_time_s=0.0 if self.max_time is None else parse_time(self.max_time),
            target=self.target or "",
            patience=self.patience,
            min_delta=self.min_delta,
            plateau=plateau,
            factor=factor,
            metric=metric,
            larger=larger,
            on_nan=self.on_nan,
            best=self.best or "",
            keep_best=self.keep_best,
        )

    def check_environment(self) -> None:
        """Check the environment variables now, so that no role fails on one of them later.

        Raises:
            UsageError: a variable has a value that is not allowed, or this host cannot listen at PACELINE_HOST; the
                message names it.
        """
        check_address(self._launch(None, None).shared.host)

    def role_spec(self, name: str, start: int, *, resume: str | None = None, place: Place | None = None) -> RoleSpec:
        """The whole configuration of one process: start number `start` of `name`, which runs at `place`.

        `resume` is the checkpoint from which a coordinator begins, as in the plan; None continues where the log ends.

        Raises:
            UsageError: an environment variable has a value that is not allowed; the message names it.
        """
        role, launch = role_of(name), self._launch(resume, place)
        settings = msgspec.Raw(msgspec.json.encode(role.settings(launch)))
        return RoleSpec(role=role.name, name=name, start=start, shared=launch.shared, settings=settings)

    def _launch(self, resume: str | None, place: Place | None) -> Launch:
        run = RunDir(self.run.resolve())
        placed = self._placed(load.shared_spec(run.path), place)
        shared = msgspec.structs.replace(
            placed,
            label=str(self.run),
            log=LogSpec(self.log_level, self.log_format),
            checkpoints=absolute_url(self.checkpoints or str(run.path / "checkpoints")),
            term=self.term,
            term_key=self.term_key,
            **({} if self.trace is None else {"trace": str(RunDir(Path(placed.run)).trace)}),
        )
        options = {load.MODE: self.mode, load.SLOTS: self.slots, load.SEED: self.seed, load.THREADS: self.threads}
        env = {**self.env, **os.environ, **{key: str(value) for key, value in options.items() if value is not None}}
        worker = msgspec.structs.replace(
            load.worker_spec(env),
            script=self.path_at(place, self.script),
            module=self.module,
            arguments=tuple(self.arguments),
            local_workers=self.workers if place is None else place.workers,
            collective=self.collective,
            ordered=self.ordered,
        )
        threads = self.server_threads if place is None else max(1, place.cores // 2)
        return Launch(shared, replace(self.cluster, resume=resume), ServerSpec(threads), worker)

    def _placed(self, shared: SharedSpec, place: Place | None) -> SharedSpec:
        """The settings for all roles, for roles at `place`."""
        if self.hosts is None:
            return shared
        listen = self.hosts.address
        own = Place(host_name=LOCAL_HOST, address=shared.host if listen is None else listen[0], run=shared.run)
        place = own if place is None else place
        return msgspec.structs.replace(
            shared,
            run=place.run,
            host=place.address,
            host_name=place.host_name,
            returns_files=place.saves,
            insecure_blocks=self.hosts.insecure_blocks,
        )

    def path_at(self, place: Place | None, path: Path) -> str:
        """The path at `place` of a file or directory of this machine; the copy of `code_root` if it is not in there."""
        path = path.absolute()
        if place is None or place.code_root is None:
            return str(path)
        root = Path(place.code_root)
        inside = path.resolve().is_relative_to(self.code_root)
        return str(root / path.resolve().relative_to(self.code_root) if inside else root)

    @property
    def server_threads(self) -> int:
        """The number of threads of each server: its share of the cores that this process may use.

        These threads work only during a large update, while the workers of a lock-step job wait for it. The number of
        threads does not change the result.
        """
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // max(1, self.servers))

    # ------------------------------------------------------------ in the run directory

    def save(self) -> None:
        """Write the plan to the run directory, with absolute paths."""
        kept = {key: value for key, value in asdict(self).items() if key not in _NOT_KEPT}
        kept["script"] = str(self.script.resolve())
        kept["cwd"] = str((self.cwd or Path.cwd()).resolve())
        kept["arguments"] = list(self.arguments)
        kept["checkpoints"] = None if self.checkpoints is None else absolute_url(self.checkpoints)
        kept["trace"] = None if self.trace is None else str(self.trace.absolute())
        kept["env"] = {**load.passed_on(), **self.env}
        RunDir(self.run).write_plan(kept)

    @classmethod
    def of(cls, run: Path, **changes: Any) -> RunPlan:
        """The plan that was saved in the run directory `run`, with `changes`.

        Raises:
            UsageError: the run does not exist, or its plan is not valid.
        """
        kept = RunDir(run).plan()
        if not kept:
            raise UsageError(f"{run} was not started by `paceline run`: it has no run.json")
        known = {f.name for f in fields(cls)}
        kept = {key: value for key, value in kept.items() if key in known} | changes
        try:
            paths = {key: Path(kept[key]) for key in _PATHS if kept.get(key) is not None}
            if isinstance(kept.get("hosts"), dict):
                kept["hosts"] = msgspec.convert(kept["hosts"], HostOptions)
            return cls(run=run, **(kept | paths))
        except (TypeError, AttributeError, msgspec.ValidationError) as error:
            raise UsageError(f"{RunDir(run).plan_file} cannot be used: {error}") from None

    def at(self, run: Path) -> RunPlan:
        """The same plan in another run directory."""
        return replace(self, run=run)

    def pinned(self) -> RunPlan:
        """The same plan with absolute paths: it holds also after this process has changed its working directory."""
        names = ("run", "script", "summary", "trace", "token_file")
        paths = {name: path.absolute() for name in names if (path := getattr(self, name)) is not None}
        place = None if self.checkpoints is None else absolute_url(self.checkpoints)
        return replace(self, **paths, checkpoints=place, cwd=(self.cwd or Path.cwd()).absolute())


def is_serverless(mode: str | None) -> bool:
    """Whether a run in `mode` never needs servers: its workers hold the model from the beginning to the end."""
    return mode is not None and all(row.mode.in_group for row in parse_schedule(mode))


def absolute_url(where: str) -> str:
    """The place of checkpoints as an absolute path; a URL stays as it is."""
    return where if "://" in where else str(Path(where).absolute())


def _check_writable(option: str, file: Path) -> None:
    """Raise UsageError if `file` cannot be written: the user learns it before the training, not after it."""
    folder = file.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK) and not file.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise UsageError(f"{option} {file} cannot be written: choose a file in a folder that you may write to")
