"""Faults on a scripted run: its statuses are made up, the processes that get the signals are real."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.checkpoint.manifest import MARKER
from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.chaos.figures import Figures
from paceline.testing.chaos.launch import Footprint, started_by
from paceline.testing.chaos.plan import CampaignSpec, Fault, Kind, Planned
from paceline.testing.chaos.run import ChaosRun, Ended, Stuck
from paceline.testing.chaos.strikes import Strikes
from paceline.testing.chaos.watch import Process, Seen


@dataclass
class Script:
    """The state of a made-up run: commits every 10 ms, and `change` may do anything before each status."""

    seen: Seen
    change: Callable[[Script], None] = lambda script: None

    def look(self) -> Seen:
        now = time.monotonic()
        self.seen = replace(self.seen, at=now, version=int(now * 100), step=int(now * 100))
        self.change(self)
        return self.seen

    def respawn(self, name: str, pid: int) -> None:
        processes = dict(self.seen.processes)
        processes[name] = Process(name, name.split("-")[0], pid)
        self.seen = replace(self.seen, processes=processes)


class ScriptedRun(ChaosRun):
    """A run without a launcher."""

    def __init__(self, spec: CampaignSpec, script: Script, processes: list[psutil.Process]) -> None:
        super().__init__(spec, "run", Quiet())
        self.script = script
        self.processes = processes
        self.code: int | None = None

    def family(self) -> list[psutil.Process]:
        return self.processes

    def look(self) -> Seen | None:
        self.check()
        return self.script.look()

    def check(self) -> None:
        if self.code == 0:
            raise Ended


class Quiet:
    def note(self, text: str) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    process = subprocess.Popen(["sleep", "60"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def stage(tmp_path: Path, name: str, victim: psutil.Process, **changes: Any) -> tuple[ScriptedRun, Strikes]:
    """A run in which `name` is the process that gets the signal."""
    spec = CampaignSpec(
        **{
            "script": SCRIPT, "faults": {Fault(Kind.KILL, "worker"): 1}, "limits": {}, "dir": tmp_path,
            "workers": 2, "servers": 1, "lease_s": 0.6, "deadline_s": 1.0, **changes,
        }
    )  # fmt: skip
    pids = {"coordinator": 1, "server-0": 2, "worker-0": 3, "worker-1": 4, name: victim.pid}
    processes = {n: Process(n, n.split("-")[0], pid) for n, pid in pids.items()}
    seen = Seen(0.0, 1, 0, 0, 0, None, "running", False, 2, 0, processes, None, "i0000-v0000000001")
    run = ScriptedRun(spec, Script(seen), [victim])
    return run, Strikes(run, Figures(spec, ""))


def planned(kind: Kind, role: str) -> Planned:
    return Planned(Fault(kind, role), 0.0, 0.99, 0.0)


def dead(process: psutil.Process) -> bool:
    return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)


def test_a_kill_is_over_when_the_victim_is_back(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "worker-1", victim)
    began = time.monotonic()

    def change(script: Script) -> None:
        if time.monotonic() > began + 0.5:
            script.respawn("worker-1", 99)

    run.script.change = change
    assert strikes.do(planned(Kind.KILL, "worker"))
    assert dead(victim)
    figures = strikes.figures
    assert figures.fired == {"kill worker": 1}
    assert figures.recovery_s["worker"][0] < 0.2
    assert 0.4 < figures.restored_s["worker"][0] < 0.9


def test_what_never_comes_is_named(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "server-0", victim)
    with pytest.raises(Stuck) as error:
        strikes.do(planned(Kind.KILL, "server"))
    for word in ("waited 1 s", "incarnation 1", "after kill server", "server-0 with another pid", str(run.dir.logs)):
        assert word in str(error.value)


def test_a_run_that_was_sent_back_first_saves_something_new(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "server-0", victim)

    def change(script: Script) -> None:
        if dead(victim):
            script.seen = replace(script.seen, incarnation=1)
            script.respawn("server-0", 99)

    run.script.change = change
    assert strikes.do(replace(planned(Kind.KILL, "server"), span=0.9))
    with pytest.raises(Stuck, match="a new complete checkpoint"):
        strikes.do(replace(planned(Kind.KILL, "server"), span=0.9))
    assert strikes.figures.fired == {"kill server": 1}


def test_only_processes_of_the_run_are_hit(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "worker-1", victim)
    run.processes = []
    with pytest.raises(Stuck, match="a worker among the processes of the run"):
        strikes.do(planned(Kind.KILL, "worker"))
    assert not dead(victim)
    assert not strikes.figures.fired


def test_a_worker_sleeps_past_its_lease_while_the_others_go_on(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "worker-1", victim)
    statuses = []
    run.script.change = lambda script: statuses.append(victim.status())
    began = time.monotonic()
    assert strikes.do(planned(Kind.STOP, "worker"))
    assert time.monotonic() - began > 0.6
    assert psutil.STATUS_STOPPED in statuses
    assert victim.status() == psutil.STATUS_SLEEPING
    assert strikes.figures.recovery_s["stop worker"][0] < 0.2, "from the stop: the others went on"


@pytest.mark.parametrize("evicted", [0, 1])
def test_a_coordinator_that_slept_must_not_evict(evicted: int, tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "coordinator", victim)
    began = time.monotonic()

    def change(script: Script) -> None:
        if time.monotonic() > began + 0.8:
            script.seen = replace(script.seen, lost_workers=evicted)

    run.script.change = change
    assert strikes.do(planned(Kind.STOP, "coordinator"))
    assert strikes.figures.needless_evictions == evicted
    assert victim.status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize("late", [False, True])
def test_a_kill_while_a_checkpoint_is_written(late: bool, tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "coordinator", victim)
    folder = tmp_path / "run" / "checkpoints" / "i0000-v0000000002"
    (folder.parent / "i0000-v0000000001").mkdir(parents=True)
    run.dir.logs.mkdir()

    def write() -> None:
        time.sleep(0.1)
        folder.mkdir()
        (folder / "part").touch()
        while late and not dead(victim):
            pass
        if late:
            (folder / MARKER).touch()

    def change(script: Script) -> None:
        if dead(victim):
            script.seen = replace(script.seen, generation=2)
            script.respawn("coordinator", 99)

    run.script.change = change
    writer = threading.Thread(target=write)
    writer.start()
    try:
        hit = strikes.do(planned(Kind.SAVING, "coordinator"))
    finally:
        writer.join()
    assert strikes.figures.checkpoints_checked == 1
    assert strikes.figures.checkpoints_unloadable == 1, "the made-up checkpoints are empty folders"
    if hit:
        assert strikes.figures.fired == {"kill-saving coordinator": 1}
    else:
        assert late
        assert strikes.figures.fired == {"kill coordinator": 1}
        assert strikes.figures.missed_saves == 1


def test_a_run_that_ends_first_leaves_the_fault_undone(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "worker-1", victim)
    run.code = 0
    with pytest.raises(Ended):
        strikes.do(planned(Kind.KILL, "worker"))
    assert not strikes.figures.fired


def test_whoever_was_asked_to_leave_must_not_count_as_lost(tmp_path: Path, victim: psutil.Process) -> None:
    run, strikes = stage(tmp_path, "worker-1", victim)
    joined: list[int] = []
    run.join = lambda: joined.append(1)  # type: ignore[method-assign]

    def change(script: Script) -> None:
        if dead(victim):
            processes = {n: p for n, p in script.seen.processes.items() if n != "worker-1"}
            script.seen = replace(script.seen, processes=processes, workers_alive=1 + len(joined), lost_workers=1)

    run.script.change = change
    assert strikes.do(planned(Kind.TERM, "worker"))
    assert joined == [1]
    assert strikes.figures.failures == ["worker-1 was told to leave, and counts as lost"]


class Restarted(ScriptedRun):
    """A run whose launcher takes 0.4 s from its start to a whole run; `kills` are how long each one had run."""

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


def test_launchers_die_at_any_instant_of_their_start(tmp_path: Path, victim: psutil.Process) -> None:
    made, _ = stage(tmp_path, "worker-1", victim)
    run = Restarted(made.spec, made.script, [victim])
    strikes = Strikes(run, Figures(run.spec, ""))
    kill = Planned(Fault(Kind.LAUNCHER, "launcher"), 0.0, 0.0, 0.9)
    time.sleep(0.45)
    assert strikes.do(kill)
    assert strikes.settled, "the first one tells how long a start takes"
    assert strikes.do(kill)
    assert not strikes.settled
    assert strikes.do(replace(kill, draw=0.5))
    assert strikes.do(replace(kill, draw=0.1, span=0.1))
    assert strikes.settled, "some are followed by a whole run"
    whole, starting = run.kills[:2], run.kills[2:]
    assert min(whole) > 0.4
    assert 0.15 < starting[0] < 0.35
    assert 0.03 < starting[1] < 0.15
    assert len(strikes.figures.gone_s) == strikes.figures.resumes == strikes.figures.fired["kill-launcher"] == 4
    assert strikes.figures.restored_s["kill-launcher"] == pytest.approx([0.45, 0.45], abs=0.1)
    assert strikes.do(kill)
    strikes.settle()
    assert time.monotonic() - run.began > 0.4


def test_another_fault_awaits_a_run_that_starts(tmp_path: Path, victim: psutil.Process) -> None:
    made, _ = stage(tmp_path, "worker-1", victim)
    run = Restarted(made.spec, made.script, [victim])
    strikes = Strikes(run, Figures(run.spec, ""))
    for _ in range(2):
        strikes.do(Planned(Fault(Kind.LAUNCHER, "launcher"), 0.0, 0.0, 0.9))
    assert not strikes.settled
    assert strikes.do(Planned(Fault(Kind.ALL, "run"), 0.0, 0.0, 0.9))
    assert strikes.settled
    assert run.kills[-1] > 0.4


def test_roles_are_known_by_their_launcher() -> None:
    """A role's command line begins with the pid of its launcher, even when that is gone."""
    script = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, "paceline.runtime.role_process", "987654321"]) as role:
        try:
            deadline = time.monotonic() + 10
            while not (found := started_by(987654321)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert [process.pid for process in found] == [role.pid]
            assert started_by(98765432) == []
        finally:
            role.kill()
