"""The runner for hosts, with an agent that is played by the test: what each side tells the other."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from tests.kit.roles import run_in, worker
from tests.kit.simulated_hosts import facts_of

from paceline.config.role_spec import RoleSpec, decode_role_spec
from paceline.engines.host_facts import own_versions
from paceline.engines.host_options import HostOptions
from paceline.engines.host_runner import HostRunner
from paceline.engines.local_runner import LocalRunner
from paceline.engines.output import Exit, Line
from paceline.engines.plan import RunPlan
from paceline.engines.role_runner import HostGone, HostJoined, Note, Place
from paceline.errors import UsageError
from paceline.messages.base import Message
from paceline.messages.hosts import (
    AgentBeat,
    EndHost,
    Enlist,
    Enlisted,
    Reports,
    RoleEnded,
    RoleLine,
    RunningRole,
    SavedPiece,
    SignalRole,
    StartRole,
    TurnedAway,
)
from paceline.runtime.exit_codes import HOST_LOST
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import next_start
from paceline.transport.base import PeerUp, Received
from paceline.transport.zmq.port import ZmqPort

TOKEN = bytes(range(32))
T = TypeVar("T")


def made(folder: Path, *, adopt: bool = False) -> HostRunner:
    """A runner whose script is in `folder`; hosts see the same paths, so that no files are sent."""
    (folder / "train.py").touch()
    run: RunDir = run_in(folder / "run")
    run.token_file.write_text(TOKEN.hex())
    options = HostOptions(listen="127.0.0.1:0", shared_dir=True)
    plan = RunPlan(script=folder / "train.py", run=run.path, cwd=folder, hosts=options, adopt=adopt)
    return HostRunner(plan, options, run, LocalRunner(run))


class PlayedAgent:
    """The agent of a host, by hand."""

    def __init__(self, runner: HostRunner, name: str = "a") -> None:
        self.name = name
        self._runner = runner
        self._port = ZmqPort(f"agent/{name}", TOKEN, local=False, one_port=True)
        self._port.connect(f"tcp://{runner.address}")
        self._peer = self._next(PeerUp).peer

    def _next(self, kind: type[T]) -> T:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            self._runner._look(0.0)
            if isinstance(event := self._port.recv(0.01), kind):
                return event
        raise AssertionError(f"no {kind.__name__} came")

    def hear(self, kind: type[T]) -> T:
        while True:
            message = self._next(Received).message
            if isinstance(message, kind):
                return message

    def say(self, message: Message) -> None:
        self._port.send(self._peer, message)

    def enlist(self, *roles: RunningRole, address: str = "127.0.0.1", reported: int = 0) -> None:
        facts = facts_of(self.name, address=address, versions=own_versions())
        self.say(Enlist(1, f"{self.name}-1", facts, f"/cache/{self.name}", "", roles, reported))

    def close(self) -> None:
        self._port.close()


@contextmanager
def hosted(runner: HostRunner, *names: str) -> Iterator[list[PlayedAgent]]:
    agents = [PlayedAgent(runner, name) for name in names]
    try:
        yield agents
    finally:
        for agent in agents:
            agent.close()
        runner.end(0.1)


def event(runner: HostRunner, kind: type[T]) -> T:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if isinstance(found := runner.next_event(0.05), kind):
            return found
    raise AssertionError(f"no {kind.__name__} came")


def ordering(folder: Path, places: list[Place | None]) -> Callable[[Place | None], RoleSpec]:
    def order(place: Place | None) -> RoleSpec:
        places.append(place)
        return worker(RunDir(folder / "run"), folder / "train.py", start=3)

    return order


def test_a_role_is_started_signalled_and_reported_by_the_agent_of_its_host(tmp_path: Path) -> None:
    runner, places = made(tmp_path), list[Place | None]()
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        assert agent.hear(Enlisted).roles == ()
        assert runner.gather(lambda text: None) == {}
        assert event(runner, HostJoined).note == "host a joins: 2 cores at 127.0.0.1"
        assert runner.has_room("worker-0")
        runner.start("worker-0", 3, ordering(tmp_path, places))
        order = agent.hear(StartRole)
        assert (order.name, order.start, order.cwd) == ("worker-0", 3, str(tmp_path))
        assert decode_role_spec(order.spec).start == 3
        assert places[0] is not None
        assert (places[0].host_name, places[0].run, places[0].workers) == ("a", "/cache/a/run", 1)
        assert runner.roles_on("a") == ["worker-0"]
        runner.signal("worker-0", 15)
        assert agent.hear(SignalRole) == SignalRole("worker-0", 3, 15)
        saved = SavedPiece("out/model", 0, b"x", True)
        agent.say(Reports(1, (RoleLine("worker-0", 3, "OUT", "hello"), saved, RoleEnded("worker-0", 3, 0))))
        assert event(runner, Line) == Line("worker-0", "hello")
        assert event(runner, Exit) == Exit("worker-0", 3, 0)
        assert runner.alive() == []
        assert (tmp_path / "out" / "model").read_bytes() == b"x"
        assert (tmp_path / "run" / "logs" / "worker-0.log").read_text() == "hello\n"


def test_recordings_of_a_host_come_into_the_run_directory(tmp_path: Path) -> None:
    runner = made(tmp_path)
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        runner.gather(lambda text: None)
        pieces = [SavedPiece(path, 0, b"{}", True, trace=True) for path in ("worker-0.7.1.jsonl", "../../escaped")]
        agent.say(Reports(1, tuple(pieces)))
        note = event(runner, Note)
        assert "which is refused" in note.text
        assert [path.name for path in (tmp_path / "run" / "trace").iterdir()] == ["worker-0.7.1.jsonl"]
        assert not (tmp_path / "worker-0.7.1.jsonl").exists()


def test_a_run_that_has_ended_waits_for_files_while_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engines.host_runner._FAREWELL_S", 1.2)
    runner = made(tmp_path)
    agent = PlayedAgent(runner)
    agent.enlist()
    runner.gather(lambda text: None)

    def send() -> None:
        for number in range(10):
            agent.say(Reports(number + 1, (SavedPiece("trace", number, b"x", number == 9, trace=True),)))
            time.sleep(0.2)
        agent.close()

    sender = threading.Thread(target=send)
    sender.start()
    runner.end(0.1)
    sender.join()
    assert (tmp_path / "run" / "trace" / "trace").read_bytes() == b"x" * 10


@pytest.mark.parametrize("name", ["../../x", "a\0b", "", "worker", "worker-0/..", "nobody-1", "worker-" + "0" * 300])
def test_a_line_of_no_process_of_the_run_is_refused_and_written_nowhere(tmp_path: Path, name: str) -> None:
    runner = made(tmp_path)
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        runner.gather(lambda text: None)
        logs = set((tmp_path / "run" / "logs").glob("*"))
        agent.say(Reports(1, (RoleLine(name, 1, "OUT", "x"), RoleLine("worker-0", 1, "NO STREAM", "an odd line"))))
        assert "which is refused" in event(runner, Note).text
        assert event(runner, Line) == Line("worker-0", "an odd line"), "an unknown stream is the standard output"
        assert {path.name for path in set((tmp_path / "run" / "logs").glob("*")) - logs} == {"worker-0.log"}


def test_a_role_that_cannot_be_started_ends_with_the_reason_as_its_last_words(tmp_path: Path) -> None:
    runner = made(tmp_path)
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        runner.gather(lambda text: None)
        assert runner.has_room("worker-0")
        runner.start("worker-0", 3, ordering(tmp_path, []))
        agent.say(Reports(1, (RoleEnded("worker-0", 3, 1, "no memory"),)))
        assert event(runner, Line).text == "no memory (host a)"
        assert event(runner, Exit).code == 1


def test_the_roles_of_a_host_that_is_lost_end(tmp_path: Path) -> None:
    runner = made(tmp_path)
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        runner.gather(lambda text: None)
        assert runner.has_room("worker-0")
        runner.start("worker-0", 3, ordering(tmp_path, []))
        runner.saw({("worker-0", 3)})
        agent.close()
        note = event(runner, Note)
        while "does not answer" not in note.text:
            note = event(runner, Note)
        runner.saw(set())
        assert event(runner, HostGone).lost
        assert event(runner, Exit) == Exit("worker-0", 3, HOST_LOST)
        assert not runner.has_room("worker-0"), "there is no host"


def test_an_agent_that_other_hosts_cannot_reach_is_turned_away(tmp_path: Path) -> None:
    runner = made(tmp_path)
    with hosted(runner, "a") as (agent,):
        agent.enlist(address="0.0.0.0")
        answer = agent.hear(TurnedAway)
        assert answer.final
        assert "--address 0.0.0.0: give the one IP address" in answer.reason
        assert answer.reason in runner._table.problems.values()


def test_an_adopting_runner_takes_over_the_last_start_of_each_name(tmp_path: Path) -> None:
    runner = made(tmp_path, adopt=True)
    for _ in range(2):
        next_start(runner._run, "worker-0")
    next_start(runner._run, "server-0")
    (tmp_path / "run" / "hosts.json").write_text(json.dumps(["a", "b"]))
    with hosted(runner, "a", "b") as (a, b):
        a.enlist(RunningRole("worker-0", 1), RunningRole("server-0", 1))
        assert a.hear(Enlisted).roles == (RunningRole("server-0", 1),)
        b.enlist(RunningRole("worker-0", 2))
        assert b.hear(Enlisted).roles == (RunningRole("worker-0", 2),)
        assert runner.gather(lambda text: None) == {"worker-0": 2, "server-0": 1}


def test_agents_end_with_the_run(tmp_path: Path) -> None:
    runner = made(tmp_path)
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        runner.gather(lambda text: None)
        agent.say(AgentBeat(True))
        runner.dismiss("a")
        assert agent.hear(EndHost).reason == "the host is empty"
        assert not runner.has_host("a")


def test_an_address_that_is_taken_is_refused_by_name(tmp_path: Path) -> None:
    runner = made(tmp_path)
    try:
        taken = HostOptions(listen=runner.address, shared_dir=True)
        with pytest.raises(UsageError, match=f"--listen {runner.address}"):
            HostRunner(runner._plan, taken, runner._run, LocalRunner(runner._run))
    finally:
        runner.end(0.1)


def test_no_agent_is_brought_while_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = made(tmp_path)
    asked: list[object] = []

    def tick(joined: object, wanted: object) -> list[object]:
        asked.append(wanted)
        return []

    monkeypatch.setattr(runner._carrier, "tick", tick)
    with hosted(runner, "a") as (agent,):
        agent.enlist()
        runner.gather(lambda text: None)
        assert asked
        asked.clear()
        runner._next_tick = 0.0
    assert asked == []
