"""The one job that this process has joined."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config import load
from paceline.config.dials import ClusterSpec
from paceline.config.live import parse_schedule, schedule_name
from paceline.config.role_spec import RoleSpec, WorkerSpec
from paceline.errors import JobError, TransportError, UsageError
from paceline.messages import JobArgs, Register
from paceline.runtime.machine import host_name, worker_fingerprint
from paceline.runtime.member import start_member
from paceline.runtime.rundir import RunDir
from paceline.runtime.saved_files import note_saved
from paceline.runtime.starts import next_start
from paceline.worker.preemption import Preemption
from paceline.worker.script_errors import remedy

if TYPE_CHECKING:
    from paceline.transport.base import Port
    from paceline.worker.job import Job

preemption = Preemption()
"""The request to leave of this process: SIGTERM makes it while a script runs."""

_NOT_COLLECTIVE = (
    "mode {mode} needs workers that can hold the model: start the run with `paceline run --insecure-collective`, if "
    "you trust the network and the users of these machines"
)

_current: Job | None = None
_stand_in: Any = None
_ever = False
_assigned: tuple[RoleSpec, WorkerSpec] | None = None
_make: Callable[[RoleSpec, WorkerSpec, JobArgs, Callable[[], None]], Job] | None = None


def assign(
    spec: RoleSpec,
    worker: WorkerSpec,
    make: Callable[[RoleSpec, WorkerSpec, JobArgs, Callable[[], None]], Job] | None = None,
) -> None:
    """Make `join` use this configuration from now on, instead of the environment.

    `make` makes the job of a process that is no worker; the job calls its last argument when it is closed.
    """
    global _assigned, _make
    _assigned, _make = (spec, worker), make


def stand_in(job: Any) -> None:
    """Let `join` return `job` from now on, without a run; None: as usual again."""
    global _stand_in
    _stand_in = job


def join(*, seed: int = 0, mode: str = "bsp", dir: str | os.PathLike[str] | None = None) -> Job:
    """Join the job: as one of its workers under `paceline run`, else as a whole job in this process.

    The command line overrides the environment, and the environment overrides these arguments. Seeds torch, numpy and
    random, so that every worker builds the same model. Without `paceline run`, log and summary are written to `dir`.

    Raises:
        UsageError: a job is open already, or a value is out of range.
        ClusterLostError: no coordinator answered in time.
    """
    global _current, _ever
    if _stand_in is not None:
        stands: Job = _stand_in
        return stands
    if _current is not None:
        raise UsageError("a job is open in this process: close it (job.close(), or `with paceline.join() as job:`)")
    spec, worker = _place() if _assigned is None else _assigned
    if not 0 <= int(seed) < 2**63:
        raise UsageError(f"seed must be between 0 and 2**63 - 1, not {seed}")
    args = JobArgs(
        worker.seed if worker.seed is not None else int(seed),
        schedule_name(worker.mode or mode),
        worker.slots,
        worker.threads,
        worker.slots_auto,
    )
    import torch

    from paceline.data.seeding import seed_all

    torch.set_num_threads(args.threads)
    seed_all(args.seed)
    if spec is not None and _make is not None:
        job = _make(spec, worker, args, lambda: _forget(False))
    elif spec is not None:
        if any(row.mode.in_group for row in parse_schedule(args.mode)) and not worker.collective:
            raise UsageError(_NOT_COLLECTIVE.format(mode=args.mode))
        job = _clustered(spec, worker, args)
    else:
        job = _embedded(worker, args, None if dir is None else Path(dir))
    if not _ever:
        atexit.register(_at_exit)
    _current, _ever = job, True
    return job


def ever() -> bool:
    """Whether this process has joined a job."""
    return _ever


def close(*, failed: bool) -> None:
    """Leave the job, if one is open."""
    if _current is not None:
        _current.close(failed=failed)


def fail(trace: str) -> None:
    """Tell the job that this worker's script raised. Without a job it does nothing: the exit code tells the engine."""
    if _current is not None:
        # If the job has ended already, its first reason counts.
        with contextlib.suppress(JobError, TransportError):
            _current.fail(trace)


def _at_exit() -> None:
    if _current is not None:
        error = getattr(sys, "last_value", None)
        if error is not None and (text := remedy(error)) is not None:
            sys.stderr.write(f"{text}\n")  # below the traceback, which is printed by now
        _current.close(failed=error is not None)


def _forget(failed: bool) -> None:
    global _current
    _current = None


def _place() -> tuple[RoleSpec | None, WorkerSpec]:
    """Read the configuration from the environment, for a script that no engine has started; None without a run."""
    run, worker = load.run_dir(), load.worker_spec()
    if run is None:
        return None, worker
    name = load.role_name()
    start = next_start(RunDir(run), name)
    return RoleSpec(role="worker", name=name, start=start, shared=load.shared_spec(run)), worker


def _clustered(spec: RoleSpec, worker: WorkerSpec, args: JobArgs) -> Job:
    from paceline.clients.heartbeat import Heartbeat
    from paceline.runtime.starts import node_id
    from paceline.transport.zmq.port import ZmqPort
    from paceline.worker.job import Job
    from paceline.worker.overlap import pays
    from paceline.worker.session import Session

    run, shared = RunDir(Path(spec.shared.run)), spec.shared
    open_port = functools.partial(ZmqPort, local=shared.local, insecure_blocks=shared.insecure_blocks)
    token, node = run.token(), node_id(spec.name, spec.start)
    address = run.wait_for_coordinator(worker.timeout_s)
    beat = Heartbeat(lambda: open_port(f"{node}#beat", token), run.coordinator, node, 0.5)
    port: Port = open_port(node, token)
    if worker.faults:
        from paceline.runtime.fault_injection import wrap

        port = wrap(port, worker.faults, spec.name, spec.start)
    host, fingerprint = host_name(spec.shared), worker_fingerprint()
    intro = Register(1, spec.role, spec.name, spec.start, host, None, args, fingerprint=fingerprint)
    member = start_member(run, spec, worker) if worker.collective else None
    session = Session(
        port,
        intro,
        timeout_s=worker.timeout_s,
        silent_s=beat.silent_s,
        find=run.coordinator,
        preemption=preemption,
        member="" if member is None else member.node,
    )
    beat.start()

    def end(failed: bool) -> None:
        if member is not None:
            if failed:
                member.close()
            else:
                member.leave()
        beat.close()
        port.close()
        _forget(failed)

    def send_ahead(nbytes: int, addresses: Iterable[str]) -> bool:
        if worker.overlap is not None:
            return worker.overlap
        return pays(nbytes, addresses, _cores(), worker.local_workers * args.threads)

    try:
        welcome = session.open(address)
    except BaseException:
        end(True)
        raise

    def on_saved(path: Path) -> None:
        note_saved(run, spec.name, path)

    saves = on_saved if spec.shared.returns_files else None
    return Job(session, welcome.job or args, end, send_ahead=send_ahead, on_saved=saves)


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _embedded(worker: WorkerSpec, args: JobArgs, path: Path | None) -> Job:
    from paceline.runtime.embedded import EmbeddedCluster
    from paceline.runtime.starts import node_id
    from paceline.worker.job import Job
    from paceline.worker.session import Session

    cluster = EmbeddedCluster(path, ClusterSpec())
    port = cluster.hub.port(node_id("worker-0", 1))
    intro = Register(1, "worker", "worker-0", 1, socket.gethostname(), None, args)
    session = Session(port, intro, timeout_s=30.0)

    def end(failed: bool) -> None:
        _forget(failed)
        # Within `with join() as job:` the exception is being handled; at the exit of the script it was printed before.
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        cluster.close(failed=failed, interrupted=isinstance(error, KeyboardInterrupt))

    session.open(cluster.address)
    # One thread does everything, so sending during backward gains nothing; PACELINE_OVERLAP=1 does it nevertheless.
    return Job(session, args, end, send_ahead=lambda nbytes, addresses: bool(worker.overlap))
