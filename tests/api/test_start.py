"""What a start costs: the command line and the coordinator do without torch, and help comes at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.e2e.cluster import PACELINE, python, run

WITHOUT_TORCH = [
    "paceline",
    "paceline.cli.main",
    "paceline.cli.run",
    "paceline.cli.demo",
    "paceline.cli.status",
    "paceline.cli.audit",
    "paceline.cli.checkpoints",
    "paceline.coordinator.audit_input",
    "paceline.coordinator.service",
    "paceline.clients.observer",
    "paceline.engines.supervisor",
    "paceline.runtime.role_process",
]


def test_torch_stays_out_of_the_coordinator_and_the_command_line(tmp_path: Path) -> None:
    code = (
        "import importlib, sys, threading\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} imports torch'\n"
        "assert threading.active_count() == 1, 'importing starts nothing'\n"
    )
    python("-c", code, *WITHOUT_TORCH, cwd=tmp_path, timeout_s=30).check()


def test_a_coordinator_that_serves_has_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, msgspec, pathlib\n"
        "from paceline.config.dials import ClusterSpec\n"
        "from paceline.coordinator.service import CoordinatorService\n"
        "from paceline.coordinator.store import LogStore\n"
        "from paceline.runtime.rundir import RunDir\n"
        "from paceline.transport.zmq.port import ZmqPort\n"
        "run = RunDir.create(pathlib.Path('run'))\n"
        "log = LogStore(run.log_file)\n"
        "port = ZmqPort('coordinator/1', run.token(), listen='127.0.0.1')\n"
        "service = CoordinatorService(port, ClusterSpec(), log)\n"
        "service.on_tick(0.0)\n"
        "msgspec.json.encode(service.status(0.0))\n"
        "port.close(); log.close()\n"
        "assert 'torch' not in sys.modules\n"
    )
    python("-c", code, cwd=tmp_path, timeout_s=30).check()


@pytest.mark.parametrize("command", ["", "run", "status", "demo"])
def test_help_comes_at_once_and_fits_a_screen(command: str, tmp_path: Path) -> None:
    # The least of a few, against the least of a bare interpreter: a busy machine slows both.
    words = [*PACELINE, *command.split(), "--help"]
    helps = [run(words, tmp_path, timeout_s=20).check() for _ in range(3)]
    bare = min(python("-c", "pass", cwd=tmp_path).seconds for _ in range(3))
    assert min(h.seconds for h in helps) < max(0.3, 15 * bare)
    assert len(helps[0].lines) <= 40
    assert max(map(len, helps[0].lines)) <= 100


def test_import_is_cheap(tmp_path: Path) -> None:
    began = time.monotonic()
    python("-c", "import paceline; paceline.errors.UsageError", cwd=tmp_path, timeout_s=20).check()
    seconds = time.monotonic() - began
    bare = min(python("-c", "pass", cwd=tmp_path).seconds for _ in range(3))
    assert seconds < max(1.0, 20 * bare)
