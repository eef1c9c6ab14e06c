"""The process of one role: ``python -m paceline.runtime.role_process ROLE …``, started by an engine."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from paceline.checkpoint.storage import open_storage
from paceline.clients.heartbeat import Heartbeat
from paceline.clients.redial import Redial
from paceline.config import load
from paceline.config.dials import ClusterSpec
from paceline.errors import TransportError
from paceline.messages import Register
from paceline.orphans import die_with_parent
from paceline.runtime.addresses import own_address
from paceline.runtime.rundir import RunDir
from paceline.runtime.service_loop import node_id, serve
from paceline.telemetry import tracing
from paceline.transport.zmq.port import ZmqPort

WAIT_S = 60.0
BEAT_S = 0.5


def run_coordinator(run: RunDir, spec: ClusterSpec) -> int:
    """Serve as the coordinator of `run`, where the last one listened if that can be."""
    from paceline.coordinator.service import CoordinatorService
    from paceline.coordinator.store import LogStore

    log = LogStore(run.log_file)
    port = _listen(run)
    try:
        service = CoordinatorService(port, spec, log, run=str(run.path), storage=open_storage(run.checkpoints))
        try:
            assert port.address is not None
            run.announce(port.address, log.generation)
            serve(service, port)
            _flush(port)
        finally:
            service.close()
    finally:
        port.close()
        log.close()
    return 0


def _listen(run: RunDir) -> ZmqPort:
    """A port for the coordinator: at the address that everyone knows, or at another one, which all will look up."""
    node, token, known = node_id("coordinator"), run.token(), run.coordinator()
    if known is not None:
        with suppress(TransportError, ValueError):
            return ZmqPort(node, token, listen=own_address(), port=urlsplit(known).port or 0)
    return ZmqPort(node, token, listen=own_address())


def run_server(run: RunDir, name: str, threads: int) -> int:
    """Serve blocks for `run`; large updates are made by `threads`, each on blocks of its own."""
    import torch

    from paceline.server.service import ServerService

    torch.set_num_threads(1)
    node, token = node_id(name), run.token()
    port = ZmqPort(node, token, listen=own_address())
    beat = Heartbeat(lambda: ZmqPort(f"{node}#beat", token), run.coordinator, node, BEAT_S)
    try:
        intro = Register(1, "server", name, os.getpid(), socket.gethostname(), port.address)
        service = ServerService(port, intro, storage=open_storage(run.checkpoints), threads=threads)
        run.wait_for_coordinator(WAIT_S)
        beat.start()
        try:
            serve(service, port, Redial(port, run.coordinator))
        finally:
            service.close()
    finally:
        beat.close()
        port.close()
    return 0


def run_worker(script: str, arguments: list[str]) -> int:
    """Run the user's script as a worker: `join` finds the run by the environment."""
    from paceline.runtime.script import run_script

    return run_script(script, arguments)


def _flush(port: ZmqPort) -> None:
    """Give the last replies a moment to leave."""
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline and port.recv(0.01) is not None:
        pass


def main(argv: list[str]) -> int:
    """Entry point of every role's process. `argv` is: parent pid, role, name, then the role's own arguments."""
    parent, role, name, *rest = argv
    die_with_parent(int(parent))
    if (folder := load.trace_dir()) is not None:
        tracing.start(load.role_name(), folder)
    if role == "coordinator":
        return run_coordinator(RunDir(Path(rest[0])), msgspec.json.decode(rest[1], type=ClusterSpec))
    if role == "server":
        return run_server(RunDir(Path(rest[0])), name, int(rest[1]))
    return run_worker(rest[0], rest[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
