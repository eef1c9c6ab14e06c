"""The one job that this process has joined."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.dials import ClusterSpec, parse_mode
from paceline.config.load import WorkerEnv, worker_env
from paceline.errors import JobError, TransportError, UsageError
from paceline.messages import JobArgs, Register
from paceline.runtime.rundir import RunDir
from paceline.worker.preemption import Preemption

if TYPE_CHECKING:
    from paceline.transport.base import Port
    from paceline.worker.job import Job

preemption = Preemption()
"""Whether this process was told to leave; the role that runs the script requests it."""

_current: Job | None = None
_ever = False


def join(*, seed: int = 0, mode: str = "bsp", dir: str | os.PathLike[str] | None = None) -> Job:
    """Join the job: under `paceline run` one worker of many, alone one process that is everything.

    The command line goes over the environment, and the environment over these arguments. Seeds torch, numpy and
    random, so that every worker builds the same model. `dir` keeps the embedded run's log and summary.

    Raises:
        UsageError: a job is open already, or a value makes no sense.
        ClusterLostError: no coordinator answered in time.
    """
    global _current, _ever
    if _current is not None:
        raise UsageError("a job is open in this process: close it (job.close(), or `with paceline.join() as job:`)")
    env = worker_env()
    if not 0 <= int(seed) < 2**63:
        raise UsageError(f"seed must be between 0 and 2**63 - 1, not {seed}")
    args = JobArgs(
        env.seed if env.seed is not None else int(seed),
        parse_mode(env.mode or mode).name,
        env.slots,
        env.threads,
    )
    import torch

    from paceline.data.seeding import seed_all

    torch.set_num_threads(args.threads)
    seed_all(args.seed)
    job = _clustered(env, args) if env.run is not None else _embedded(env, args, None if dir is None else Path(dir))
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
    """Tell the job that this worker's script raised; a worker that never joined tells the engine by its exit code."""
    if _current is not None:
        # Where the job has ended by itself, its own reason goes first.
        with contextlib.suppress(JobError, TransportError):
            _current.fail(trace)


def _at_exit() -> None:
    if _current is not None:
        _current.close(failed=getattr(sys, "last_value", None) is not None)


def _forget(failed: bool) -> None:
    global _current
    _current = None


def _clustered(env: WorkerEnv, args: JobArgs) -> Job:
    from paceline.clients.heartbeat import Heartbeat
    from paceline.runtime.service_loop import node_id
    from paceline.transport.zmq.port import ZmqPort
    from paceline.worker.job import Job
    from paceline.worker.overlap import pays
    from paceline.worker.session import Session

    assert env.run is not None
    run = RunDir(env.run)
    token, node = run.token(), node_id(env.name)
    address = run.wait_for_coordinator(env.timeout_s)
    beat = Heartbeat(lambda: ZmqPort(f"{node}#beat", token), run.coordinator, node, 0.5)
    port: Port = ZmqPort(node, token)
    if env.faults:
        from paceline.runtime.fault_injection import wrap

        port = wrap(port, env.faults, env.name)
    intro = Register(1, "worker", env.name, os.getpid(), socket.gethostname(), None, args)
    session = Session(
        port, intro, timeout_s=env.timeout_s, silent_s=beat.silent_s, find=run.coordinator, preemption=preemption
    )
    beat.start()

    def end(failed: bool) -> None:
        beat.close()
        port.close()
        _forget(failed)

    def send_ahead(nbytes: int, addresses: Iterable[str]) -> bool:
        if env.overlap is not None:
            return env.overlap
        return pays(nbytes, addresses, _cores(), env.local_workers * args.threads)

    try:
        welcome = session.open(address)
    except BaseException:
        end(True)
        raise
    return Job(session, welcome.job or args, end, send_ahead=send_ahead)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _embedded(env: WorkerEnv, args: JobArgs, path: Path | None) -> Job:
    from paceline.runtime.embedded import EmbeddedCluster
    from paceline.worker.job import Job
    from paceline.worker.session import Session

    cluster = EmbeddedCluster(path, ClusterSpec())
    port = cluster.hub.port(f"worker-0/{secrets.token_hex(4)}")
    intro = Register(1, "worker", "worker-0", os.getpid(), socket.gethostname(), None, args)
    session = Session(port, intro, timeout_s=30.0)

    def end(failed: bool) -> None:
        _forget(failed)
        cluster.close(failed=failed)

    session.open(cluster.address)
    # One thread does everything here, so nothing can overlap; but what is asked for is done.
    return Job(session, args, end, send_ahead=lambda nbytes, addresses: bool(env.overlap))
