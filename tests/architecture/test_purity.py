"""Core, wire and messages do no I/O; the coordinator and the command line start without torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.architecture.house import package, snippet
from tests.kit.real_runs import python
from tools.source import Source

PURE = ("core/", "wire/", "messages/")
IMPURE = {"asyncio", "multiprocessing", "os", "random", "select", "socket", "sqlite3", "subprocess", "threading"}
IMPURE |= {"time", "torch", "zmq"}

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


def _impure(source: Source, module: str) -> set[str]:
    """Return the modules that `module` imports at any depth and that do I/O, tell the time or draw random numbers."""
    found: set[str] = set()
    for node in ast.walk(source.trees[module]):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found & IMPURE


def test_core_wire_and_messages_do_no_io() -> None:
    modules = [module for module in package().trees if module.startswith(PURE)]
    assert len(modules) > 50
    assert {m: found for m in modules if (found := _impure(package(), m))} == {}


@pytest.mark.parametrize("line", ["import time", "from torch.nn import Module", "def f():\n    import socket"])
def test_an_impure_import_is_found(tmp_path: Path, line: str) -> None:
    assert len(_impure(snippet(tmp_path, core__a=line + "\n"), "core/a.py")) == 1


def test_the_coordinator_and_the_command_line_start_without_torch(tmp_path: Path) -> None:
    code = (
        "import importlib, sys, threading\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} imports torch'\n"
        "assert threading.active_count() == 1, 'importing starts nothing'\n"
    )
    python("-c", code, *WITHOUT_TORCH, cwd=tmp_path, timeout_s=30).check()


def test_a_serving_coordinator_does_not_import_torch(tmp_path: Path) -> None:
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
