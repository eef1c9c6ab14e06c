"""Commands for a running run whose token file is not the run's: they say so, and do not say that nothing runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.fake_coordinator import TOKEN, answer_all, fake_coordinator

from paceline.cli.main import main
from paceline.engines.resume import is_running
from paceline.errors import AuthenticationError, DeadlineError
from paceline.runtime.observing import observing
from paceline.runtime.rundir import RunDir
from paceline.transport.zmq.port import ZmqPort


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """A run directory that names a live coordinator, with a token that is not the coordinator's."""
    run = RunDir.create(tmp_path / "run")
    run.write_plan({"script": __file__})
    with fake_coordinator(answer_all({"state": "running"})) as coordinator:
        run.announce(coordinator.address, 1)
        yield run


def command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command line in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("words", [["status", "run"], ["scale", "run", "-w", "3"], ["join", "run"]], ids=" ".join)
def test_a_token_of_another_run_is_named_with_exit_code_3(
    words: list[str], run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.path.parent)
    began = time.monotonic()
    assert command(words, monkeypatch) == 3
    assert time.monotonic() - began < 2.0, "no deadline has to pass"
    out, err = capsys.readouterr()
    assert "paceline: the token of run/token was refused (tcp://127.0.0.1:" in err
    assert "no coordinator" not in out + err


def test_with_the_token_of_the_run_the_coordinator_answers(run: RunDir) -> None:
    run.token_file.write_text(TOKEN.hex())
    with observing(run) as observer:
        assert observer.status().state == "running"


def test_a_run_whose_coordinator_is_gone_has_a_deadline_not_a_wrong_token(run: RunDir) -> None:
    run.announce("tcp://127.0.0.1:9", 1)
    with pytest.raises(DeadlineError), observing(run) as observer:
        observer.status(timeout_s=0.2)


def test_an_encrypted_coordinator_with_another_token_is_named_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encrypted connection only ends, so the refusal is sure only if every attempt until the deadline fails."""
    monkeypatch.setattr("paceline.transport.zmq.port.is_loopback", lambda host: False)
    run = RunDir.create(tmp_path / "run")
    port = ZmqPort("coordinator/1", TOKEN, listen="127.0.0.1")
    assert port.address is not None
    run.announce(port.address, 1)
    try:
        with pytest.raises(AuthenticationError, match="run/token was refused"), observing(run) as observer:
            observer.status(timeout_s=0.4)
    finally:
        port.close()


def test_another_run_at_the_old_address_does_not_keep_a_run_from_being_resumed(run: RunDir) -> None:
    """No launcher of this run lives here, and no role outlives its launcher: who answers belongs to another run."""
    assert not is_running(run)
    run.token_file.write_text(TOKEN.hex())
    assert is_running(run)
