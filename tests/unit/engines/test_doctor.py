"""``paceline doctor`` looks at a real machine, a real listener and a real port with a token."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, run

from paceline.core.hosts.checkup import Finding, Level
from paceline.engines.doctor import examine
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.token import new_token

TOKEN = new_token()


def _found(address: tuple[str, int] | None, token: bytes | None, folder: Path) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(address, token, folder)}


@contextmanager
def _listening(node: str) -> Iterator[tuple[str, int]]:
    """A port of `node` that answers until the block ends."""
    over = threading.Event()
    port = ZmqPort(node, TOKEN, listen="127.0.0.1", local=False, one_port=True)

    def serve() -> None:
        while not over.is_set():
            port.recv(0.02)
        port.close()

    thread = threading.Thread(target=serve)
    assert port.address is not None
    number = int(port.address.rpartition(":")[2])
    thread.start()
    try:
        yield "127.0.0.1", number
    finally:
        over.set()
        thread.join()


def test_this_machine_can_be_a_host(tmp_path: Path) -> None:
    found = _found(None, None, tmp_path / "not" / "made" / "yet")
    assert {"versions", "encryption", "address", "ports", "machine", "open files", "/dev/shm", "disk", "clock"} == set(
        found
    )
    assert found["disk"].level is not Level.PROBLEM
    assert not (tmp_path / "not").exists()


def test_the_token_of_a_supervisor_is_proven(tmp_path: Path) -> None:
    with _listening("supervisor/1-a") as where:
        assert _found(where, TOKEN, tmp_path)["token"].level is Level.OK
        other = _found(where, new_token(), tmp_path)["token"]
        assert other.level is Level.PROBLEM
        assert "another token" in other.text
        assert _found(where, None, tmp_path)["token"].level is Level.WARNING


def test_the_port_of_a_role_is_not_taken_for_a_supervisor(tmp_path: Path) -> None:
    with _listening("coordinator/1-a") as where:
        assert "port of a coordinator" in _found(where, TOKEN, tmp_path)["token"].text


def test_an_address_at_which_nothing_listens_is_a_problem_and_no_token_is_asked_for(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        found = _found(unused.getsockname(), TOKEN, tmp_path)
    assert found["connection"].level is Level.PROBLEM
    assert "token" not in found


def test_the_command_prints_json_and_exits_with_1_if_there_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ended = run([*PACELINE, "doctor", f"127.0.0.1:{unused.getsockname()[1]}", "--json"], tmp_path)
    assert ended.code == 1
    found = {finding["what"]: finding for finding in json.loads(ended.out)}
    assert found["connection"]["level"] == "problem"
    assert found["connection"]["do"]


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--token-file", "f"], "give HOST:PORT"), (["0.0.0.0:1"], "not a wildcard"), (["1.2.3.4:x"], "ADDRESS:PORT")],
)
def test_usage(words: list[str], text: str, tmp_path: Path) -> None:
    ended = run([*PACELINE, "doctor", *words], tmp_path)
    assert ended.code == 2
    assert text in ended.out + ended.err
