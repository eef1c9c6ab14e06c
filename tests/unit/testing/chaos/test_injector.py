"""The injector on a scripted run, in virtual time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.kit.chaos_run import Script, ScriptedRun, chaos_clock, dead, planned, sleeper, stage
from tests.kit.virtual_time import VirtualTime

from paceline.testing.chaos.figures import Figures
from paceline.testing.chaos.injector import Injector
from paceline.testing.chaos.plan import CampaignSpec, Fault, Kind, Planned
from paceline.testing.chaos.run import Ended, Stuck
from paceline.testing.launch import Footprint


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    with sleeper() as process:
        yield process


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return chaos_clock(monkeypatch, sys.modules[__name__])


def test_a_kill_has_recovered_when_the_victim_is_back(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "worker-1", victim)
    began = time.monotonic()

    def change(script: Script) -> None:
        if time.monotonic() > began + 0.5:
            script.respawn("worker-1", 99)

    run.script.change = change
    assert injector.do(planned(Kind.KILL, "worker"))
    assert dead(victim)
    figures = injector.figures
    assert figures.fired == {"kill worker": 1}
    assert figures.recovery_s["worker"][0] < 0.2
    assert 0.4 < figures.restored_s["worker"][0] < 0.9


def test_a_run_that_does_not_recover_names_what_is_missing(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "server-0", victim)
    with pytest.raises(Stuck) as error:
        injector.do(planned(Kind.KILL, "server"))
    for word in ("waited 1 s", "incarnation 1", "after kill server", "server-0 with another pid", str(run.dir.logs)):
        assert word in str(error.value)


def test_after_a_rewind_the_next_kill_waits_for_a_new_checkpoint(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "server-0", victim)

    def change(script: Script) -> None:
        if dead(victim):
            script.seen = replace(script.seen, incarnation=1)
            script.respawn("server-0", 99)

    run.script.change = change
    assert injector.do(replace(planned(Kind.KILL, "server"), span=0.9))
    with pytest.raises(Stuck, match="a new complete checkpoint"):
        injector.do(replace(planned(Kind.KILL, "server"), span=0.9))
    assert injector.figures.fired == {"kill server": 1}


def test_only_processes_of_the_run_get_signals(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "worker-1", victim)
    run.processes = []
    with pytest.raises(Stuck, match="a worker among the processes of the run"):
        injector.do(planned(Kind.KILL, "worker"))
    assert not dead(victim)
    assert not injector.figures.fired


def test_a_worker_is_stopped_beyond_its_lease_while_others_commit(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "worker-1", victim)
    statuses = []
    run.script.change = lambda script: statuses.append(victim.status())
    began = time.monotonic()
    assert injector.do(planned(Kind.STOP, "worker"))
    assert time.monotonic() - began > 0.6
    assert psutil.STATUS_STOPPED in statuses
    assert victim.status() == psutil.STATUS_SLEEPING
    assert injector.figures.recovery_s["stop worker"][0] < 0.2, (
        "the recovery is counted from the stop, since the others committed"
    )


@pytest.mark.parametrize("evicted", [0, 1])
def test_evictions_by_a_stopped_coordinator_are_counted(evicted: int, tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "coordinator", victim)
    began = time.monotonic()

    def change(script: Script) -> None:
        if time.monotonic() > began + 0.8:
            script.seen = replace(script.seen, lost_workers=evicted)

    run.script.change = change
    assert injector.do(planned(Kind.STOP, "coordinator"))
    assert injector.figures.needless_evictions == evicted
    assert victim.status() == psutil.STATUS_SLEEPING


def test_no_fault_is_counted_if_the_run_ends_before_it(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "worker-1", victim)
    run.code = 0
    with pytest.raises(Ended):
        injector.do(planned(Kind.KILL, "worker"))
    assert not injector.figures.fired


def test_a_terminated_worker_that_counts_as_lost_is_a_failure(tmp_path: Path, victim: psutil.Process) -> None:
    run, injector = stage(tmp_path, "worker-1", victim)
    joined: list[int] = []
    run.join = lambda *, extra=False: joined.append(1)  # type: ignore[method-assign]

    def change(script: Script) -> None:
        if dead(victim):
            processes = {n: p for n, p in script.seen.processes.items() if n != "worker-1"}
            script.seen = replace(script.seen, processes=processes, workers_alive=1 + len(joined), lost_workers=1)

    run.script.change = change
    assert injector.do(planned(Kind.TERM, "worker"))
    assert joined == [1]
    assert injector.figures.failures == ["worker-1 got SIGTERM and left, but the job counts it as lost"]


class Restarted(ScriptedRun):
    """A run that is complete 0.4 s after its launcher starts; `kills` has the age of each launcher at its death."""

    def __init__(self, spec: CampaignSpec, script: Script, processes: list[psutil.Process]) -> None:
        super().__init__(spec, script, processes)
        self.began = time.monotonic()
        self.kills: list[float] = []
        self.script.change = self._change

    def kill_launcher(self, *, everything: bool) -> Footprint:
        self.kills.append(time.monotonic() - self.began)
        return Footprint([], frozenset())

    def resume(self) -> None:
        self.began = time.monotonic()

    def _change(self, script: Script) -> None:
        whole = time.monotonic() > self.began + 0.4
        checkpoint, times = f"v{time.monotonic():.2f}", len(self.kills)
        script.seen = replace(
            script.seen, generation=1 + times, incarnation=times, workers_alive=2 * whole, checkpoint=checkpoint
        )


def test_launchers_are_killed_at_random_times_of_their_start(tmp_path: Path, victim: psutil.Process) -> None:
    made, _ = stage(tmp_path, "worker-1", victim)
    run = Restarted(made.spec, made.script, [victim])
    injector = Injector(run, Figures(run.spec, ""))
    kill = Planned(Fault(Kind.LAUNCHER, "launcher"), 0.0, 0.0, 0.9)
    time.sleep(0.45)
    assert injector.do(kill)
    assert injector.settled, "the first kill measures how long a start takes"
    assert injector.do(kill)
    assert not injector.settled
    assert injector.do(replace(kill, draw=0.5))
    assert injector.do(replace(kill, draw=0.1, span=0.1))
    assert injector.settled, "a complete run follows this kill"
    whole, starting = run.kills[:2], run.kills[2:]
    assert min(whole) > 0.4
    assert 0.15 < starting[0] < 0.35
    assert 0.03 < starting[1] < 0.15
    assert len(injector.figures.gone_s) == injector.figures.resumes == injector.figures.fired["kill-launcher"] == 4
    assert injector.figures.restored_s["kill-launcher"] == pytest.approx([0.45, 0.45], abs=0.1)
    assert injector.do(kill)
    injector.settle()
    assert time.monotonic() - run.began > 0.4


def test_the_next_fault_waits_until_a_resumed_run_is_complete(tmp_path: Path, victim: psutil.Process) -> None:
    made, _ = stage(tmp_path, "worker-1", victim)
    run = Restarted(made.spec, made.script, [victim])
    injector = Injector(run, Figures(run.spec, ""))
    for _ in range(2):
        injector.do(Planned(Fault(Kind.LAUNCHER, "launcher"), 0.0, 0.0, 0.9))
    assert not injector.settled
    assert injector.do(Planned(Fault(Kind.ALL, "run"), 0.0, 0.0, 0.9))
    assert injector.settled
    assert run.kills[-1] > 0.4
