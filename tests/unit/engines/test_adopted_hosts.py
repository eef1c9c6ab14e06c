"""A run that is adopted, with agents that only enlist."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.engines.host_facts import host_facts
from paceline.engines.host_options import HostOptions
from paceline.engines.host_runner import HostRunner
from paceline.engines.local_runner import LocalRunner
from paceline.engines.plan import RunPlan
from paceline.messages.hosts import Enlist, RunningRole
from paceline.runtime.rundir import RunDir
from paceline.transport.base import PeerUp
from paceline.transport.zmq.port import ZmqPort


@contextmanager
def _enlisted(runner: HostRunner, token: bytes, name: str, *roles: RunningRole) -> Iterator[None]:
    """An agent that offers a host on which `roles` run, and does nothing else, during the block."""
    over = threading.Event()
    facts = host_facts("127.0.0.1", name=name, cores=2)

    def serve() -> None:
        port = ZmqPort(f"agent/{name}-1", token, local=False, one_port=True)
        port.connect(f"tcp://{runner.address}")
        while not over.is_set():
            event = port.recv(0.02)
            if isinstance(event, PeerUp):
                port.send(event.peer, Enlist(1, f"{name}-1", facts, f"/nowhere/{name}", "", roles))
        port.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(30)
def test_a_run_that_is_adopted_goes_on_with_the_hosts_that_carried_roles(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    run = RunDir.create(tmp_path / "run")
    run.logs.mkdir(exist_ok=True)
    (run.path / "hosts.json").write_text(json.dumps(["a"]))  # of three at the start, two have left since
    (run.path / "starts.json").write_text(json.dumps({"worker-0": 4}))
    options = HostOptions(listen="127.0.0.1:0", min_hosts=3, shared_dir=True)
    plan = RunPlan(script=script, run=run.path, cwd=tmp_path, hosts=options, adopt=True)
    runner = HostRunner(plan, options, run, LocalRunner(run, cwd=tmp_path, env={}))
    shown: list[str] = []
    try:
        with _enlisted(runner, run.token(), "a", RunningRole("worker-0", 4)):
            assert runner.gather(shown.append) == {"worker-0": 4}
    finally:
        runner.end(0.0)
    assert all("of 1 are there" in text for text in shown)
