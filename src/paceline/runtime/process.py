"""The process of one role: ``python -m paceline.runtime.process ROLE …``, started by an engine."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.orphans import die_with_parent
from paceline.runtime.loop import node_id, serve
from paceline.runtime.rundir import RunDir
from paceline.transport.zmq import ZmqPort

WAIT_S = 60.0


def run_coordinator(run: RunDir, spec: ClusterSpec) -> int:
    """Serve as the coordinator of `run`."""
    from paceline.coordinator.service import CoordinatorService
    from paceline.coordinator.store import LogStore

    log = LogStore(run.log_file)
    port = ZmqPort(node_id("coordinator"), run.token(), listen="127.0.0.1")
    try:
        service = CoordinatorService(port, spec, log, run=str(run.path))
        assert port.address is not None
        run.announce(port.address, log.generation)
        serve(service, port)
        _flush(port)
    finally:
        port.close()
        log.close()
    return 0


def run_server(run: RunDir, name: str, threads: int) -> int:
    """Serve blocks for `run`."""
    import torch

    from paceline.messages import Register
    from paceline.server.optimizers import warm_up
    from paceline.server.service import ServerService

    torch.set_num_threads(threads)
    warm_up()
    port = ZmqPort(node_id(name), run.token(), listen="127.0.0.1")
    try:
        intro = Register(1, "server", name, os.getpid(), socket.gethostname(), port.address)
        service = ServerService(port, intro)
        port.connect(run.wait_for_coordinator(WAIT_S))
        serve(service, port)
    finally:
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
    """Entry point of every role's process. `argv` is: parent pid, role, then the role's own arguments."""
    parent, role, *rest = argv
    die_with_parent(int(parent))
    if role == "coordinator":
        return run_coordinator(RunDir(Path(rest[0])), msgspec.json.decode(rest[1], type=ClusterSpec))
    if role == "server":
        return run_server(RunDir(Path(rest[0])), rest[1], int(rest[2]))
    return run_worker(rest[0], rest[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
