"""The role of the coordinator."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from paceline.checkpoint.storage import Storage, open_storage
from paceline.config.dials import ClusterSpec
from paceline.config.role_spec import RoleSpec
from paceline.errors import CheckpointError, DeposedError, StateError, TransportError
from paceline.runtime.addresses import own_address
from paceline.runtime.exit_codes import EXIT_DEPOSED, EXIT_LOG
from paceline.runtime.last_words import say_last_words
from paceline.runtime.roles.base import HangRule, Launch, Role
from paceline.runtime.rundir import RunDir, replace_file
from paceline.runtime.service_loop import serve
from paceline.runtime.starts import node_id
from paceline.transport.zmq.port import ZmqPort

if TYPE_CHECKING:
    from paceline.coordinator.checkpoint_completion import HeldPlace
    from paceline.coordinator.service import CoordinatorService

METRICS_FILE = "metrics.port"
"""The file of a run directory with the port at which its metrics are."""

logger = logging.getLogger(__name__)


class CoordinatorRole(Role):
    """One process, without torch. It hangs if it does not answer the engine. Its end is not reported to itself."""

    name = "coordinator"
    single = True
    light = True
    hang_rule = HangRule.ENGINE
    reported = False

    def settings(self, launch: Launch) -> ClusterSpec:
        """The settings of the run, such as mode and replicas."""
        return launch.cluster

    def environment(self, spec: RoleSpec) -> Mapping[str, str]:
        """Let libraries start no threads."""
        return {"OMP_NUM_THREADS": "1"}

    def run(self, spec: RoleSpec) -> int:
        """Run the coordinator until it is asked to end, at the address of the previous coordinator if that is free."""
        try:
            return self._run(spec)
        except StateError as error:
            logger.debug("the log failed, or another run has taken over", exc_info=True)
            say_last_words(str(error))
            return EXIT_DEPOSED if isinstance(error, DeposedError) and error.place else EXIT_LOG

    def _run(self, spec: RoleSpec) -> int:
        from paceline.coordinator.service import CoordinatorService
        from paceline.coordinator.store import LogStore

        run = RunDir(Path(spec.shared.run))
        storage = open_storage(spec.shared.checkpoints)
        place = _held_place(run, spec, storage)
        log = LogStore(run.log_file)
        port = _listen(run, spec)
        try:
            cluster, label = spec.read(ClusterSpec), spec.shared.label
            service = CoordinatorService(port, cluster, log, run=label, storage=storage, start=spec.start, place=place)
            try:
                assert port.address is not None
                run.announce(port.address, log.generation)
                with _records(run, spec, cluster, service):
                    serve(service, port)
                _flush(port)
            finally:
                service.close()
        finally:
            port.close()
            log.close()
        return 0


@contextmanager
def _records(run: RunDir, spec: RoleSpec, cluster: ClusterSpec, service: CoordinatorService) -> Iterator[None]:
    """Keep the records of the run, and serve its metrics if asked to, during the block."""
    from paceline.coordinator.record_files import RecordThread

    thread = RecordThread(run.path, run.log_file, tensorboard=cluster.tensorboard)
    with ExitStack() as held:
        held.callback(thread.close)
        if cluster.metrics_port is not None:
            from paceline.coordinator.metrics_port import MetricsPort

            metrics = MetricsPort(own_address(spec.shared.host), cluster.metrics_port)
            held.callback(metrics.close)
            replace_file(run.path / METRICS_FILE, f"{metrics.port}\n")
            service.publish = metrics.publish
        yield


def _held_place(run: RunDir, spec: RoleSpec, storage: Storage) -> HeldPlace | None:
    """The place of the checkpoints, None if it is in the run directory.

    Raises:
        DeposedError: another run has taken over the place.
    """
    from paceline.checkpoint.terms import Term, check_term
    from paceline.coordinator.checkpoint_completion import HeldPlace

    shared = spec.shared
    if shared.term == 0:
        return None
    with suppress(CheckpointError, OSError):  # the next checkpoint tells that the place cannot be reached
        check_term(storage, shared.term, shared.term_key)
    not_kept = ("term", "term_key")
    term = Term(shared.term, shared.term_key)
    return HeldPlace(term, lambda: {key: value for key, value in run.plan().items() if key not in not_kept})


def _listen(run: RunDir, spec: RoleSpec) -> ZmqPort:
    """Open a port at the announced address, which all roles know; else at a new one, which they read when announced."""
    node, token, known = node_id(spec.name, spec.start), run.token(), run.coordinator()
    open_port = functools.partial(
        ZmqPort,
        listen=own_address(spec.shared.host),
        local=spec.shared.local,
        insecure_blocks=spec.shared.insecure_blocks,
    )
    if known is not None:
        with suppress(TransportError, ValueError):
            return open_port(node, token, port=urlsplit(known).port or 0)
    return open_port(node, token)


def _flush(port: ZmqPort) -> None:
    """Wait a moment, so that the last replies are sent."""
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline and port.recv(0.01) is not None:
        pass
