"""Cuts of the network, and servers that are added and drained, on a scripted run in virtual time."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import psutil
import pytest
from tests.kit.chaos_run import Script, ScriptedRun, chaos_clock, planned, stage
from tests.kit.virtual_time import VirtualTime

from paceline.errors import DeadlineError
from paceline.testing.chaos.injector import Injector
from paceline.testing.chaos.plan import Kind
from paceline.testing.chaos.run import Stuck
from paceline.testing.host_cluster import HostCluster
from paceline.testing.network import Way


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return chaos_clock(monkeypatch, sys.modules[__name__])


class Switch:
    """The hosts of a run, whose network only notes which ways are closed."""

    def __init__(self) -> None:
        self.history: list[tuple[float, frozenset[Way]]] = []

    def close_ways(self, ways: Collection[Way]) -> None:
        self.history.append((time.monotonic(), frozenset(ways)))


@pytest.fixture
def switch() -> Switch:
    return Switch()


def cabled(tmp_path: Path, switch: Switch, deadline_s: float = 3.0) -> tuple[ScriptedRun, Injector]:
    run, injector = stage(tmp_path, "worker-1", psutil.Process(), servers=2, deadline_s=deadline_s)
    run.script.respawn("server-1", 5)
    run.cluster = cast(HostCluster, switch)
    return run, injector


def test_after_a_cut_the_run_must_have_all_its_copies_again(tmp_path: Path, switch: Switch) -> None:
    run, injector = cabled(tmp_path, switch)
    began = time.monotonic()

    def change(script: Script) -> None:
        lost = 0.5 < time.monotonic() - began < 1.5
        script.seen = replace(script.seen, short=2 if lost else 0)

    run.script.change = change
    assert injector.do(planned(Kind.CUT, "symmetric"))
    (closed_at, closed), (opened_at, opened) = switch.history
    assert closed
    assert opened == frozenset()
    assert opened_at - closed_at == pytest.approx(1.0, abs=0.2)
    figures = injector.figures
    assert figures.fired == {"cut symmetric": 1}
    assert 0.2 < figures.restored_s["cut symmetric"][0] < 1.0, "the recovery is counted from the end of the cut"
    assert figures.pause_s["cut symmetric"][0] < 0.5, "the run committed during the cut"


@pytest.mark.parametrize(("draw", "others"), [(0.32, ["supervisor"]), (0.4, ["host of worker-0", "host of worker-1"])])
def test_a_cut_between_roles_is_made_between_their_hosts(
    tmp_path: Path, switch: Switch, draw: float, others: list[str]
) -> None:
    _, injector = cabled(tmp_path, switch)
    assert injector.do(replace(planned(Kind.CUT, "symmetric"), draw=draw))
    out = {("host of server-0", other) for other in others}
    assert switch.history[0][1] == out | {(other, one) for one, other in out}


def test_a_cut_waits_until_every_role_has_a_host_of_its_own(tmp_path: Path, switch: Switch) -> None:
    run, injector = cabled(tmp_path, switch)
    began = time.monotonic()
    apart = run.script.seen.processes["server-1"]

    def change(script: Script) -> None:
        shares = time.monotonic() < began + 0.5
        host = "host of worker-0" if shares else apart.host
        script.seen = replace(script.seen, processes={**script.seen.processes, "server-1": replace(apart, host=host)})

    run.script.change = change
    assert injector.do(planned(Kind.CUT, "symmetric"))
    assert switch.history[0][0] >= began + 0.5


def test_a_flapping_cut_opens_in_between(tmp_path: Path, switch: Switch) -> None:
    _, injector = cabled(tmp_path, switch)
    assert injector.do(planned(Kind.CUT, "flapping"))
    assert [bool(ways) for _, ways in switch.history] == [True, False, False], (
        "the cut opens after one period and at the end"
    )


def test_a_cut_is_opened_even_if_the_run_fails(tmp_path: Path, switch: Switch) -> None:
    run, injector = cabled(tmp_path, switch)

    def change(script: Script) -> None:
        if switch.history:
            raise KeyboardInterrupt

    run.script.change = change
    with pytest.raises(KeyboardInterrupt):
        injector.do(planned(Kind.CUT, "one-way"))
    assert [bool(ways) for _, ways in switch.history] == [True, False]


class Scaled:
    """A run that keeps the requested numbers of servers."""

    def __init__(self, run: ScriptedRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        monkeypatch.setattr(run.watch, "scale", self.asked.append)


def test_an_added_server_counts_once_it_holds_blocks(
    tmp_path: Path, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, injector = cabled(tmp_path, switch)
    run.script.seen = replace(run.script.seen, holders=frozenset({"server-0", "server-1"}))
    scaled = Scaled(run, monkeypatch)
    began = time.monotonic()

    def change(script: Script) -> None:
        if scaled.asked and time.monotonic() > began + 0.2:
            script.respawn("server-2", 6)
        if scaled.asked and time.monotonic() > began + 0.5:
            script.seen = replace(script.seen, holders=script.seen.holders | {"server-2"})

    run.script.change = change
    assert injector.do(planned(Kind.ADD, "server"))
    assert scaled.asked == [3]
    assert run.servers == 3
    assert injector.figures.fired == {"add server": 1}
    assert 0.4 < injector.figures.restored_s["add server"][0] < 1.0
    assert injector.figures.pause_s["add server"][0] < 0.5


def test_a_drain_has_recovered_when_the_server_has_ended(
    tmp_path: Path, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, injector = cabled(tmp_path, switch)
    scaled = Scaled(run, monkeypatch)
    began = time.monotonic()

    def change(script: Script) -> None:
        if scaled.asked and time.monotonic() > began + 0.4:
            kept = {name: p for name, p in script.seen.processes.items() if name != "server-1"}
            script.seen = replace(script.seen, processes=kept)

    run.script.change = change
    assert injector.do(planned(Kind.DRAIN, "server"))
    assert scaled.asked == [1]
    assert 0.3 < injector.figures.restored_s["drain server"][0] < 1.0


def test_a_run_that_refuses_a_number_of_servers_is_stuck(
    tmp_path: Path, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, injector = cabled(tmp_path, switch)

    def refuse(servers: int) -> None:
        raise DeadlineError("coordinator", "ok", 1.0)

    monkeypatch.setattr(run.watch, "scale", refuse)
    with pytest.raises(Stuck, match="the run did not accept the request for 3 servers"):
        injector.do(planned(Kind.ADD, "server"))
    assert not injector.figures.fired
