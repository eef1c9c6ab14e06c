"""Makes the job that the script of a sampler joins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paceline.config.role_spec import RoleSpec, WorkerSpec
from paceline.messages import JobArgs
from paceline.runtime.addresses import own_address
from paceline.runtime.machine import host_name
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import node_id

if TYPE_CHECKING:
    from paceline.worker.job import Job


def make_sampler_job(spec: RoleSpec, worker: WorkerSpec, args: JobArgs, forget: Callable[[], None]) -> Job:
    """Make the job of the sampler that `spec` configures; `forget` is called when it is closed.

    Raises:
        ClusterLostError: no coordinator has announced itself in time.
    """
    from paceline.sampler.job import SamplerJob
    from paceline.sampler.service import Introduction, SamplerService
    from paceline.transport.zmq.port import ZmqPort

    run, shared = RunDir(Path(spec.shared.run)), spec.shared
    run.wait_for_coordinator(worker.timeout_s)
    make_port = functools.partial(
        ZmqPort,
        node_id(spec.name, spec.start),
        run.token(),
        listen=own_address(shared.host),
        local=shared.local,
        insecure_blocks=shared.insecure_blocks,
    )
    introduction = Introduction(spec.name, spec.start, host_name(shared))
    service = SamplerService(make_port, introduction, run.coordinator, timeout_s=worker.timeout_s)
    service.start()
    # It has every member of `Job`, with the same parameters: a test compares them.
    return cast("Job", SamplerJob(service, spec.name, args.seed, worker.sampler_mib << 20, forget))
