"""Many roles on 10 agents of this machine: how long until all are there, and the CPU time of who leads them.

    python bench/scale.py --json scale.json

- light: 100 roles without torch. They are there when the supervisor has a line of each of them. No coordinator.
- real: 10 workers and 10 servers of a run. They are there when the coordinator counts all of them as members.

The time begins when all agents have enlisted. The CPU time is of the seconds after that, in which nothing starts: the
light roles do nothing, the real ones make steps of 1 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import psutil
from harness import HERE, ContenderError, end_on_sigterm, environment, write_json
from idle_role import IdleRole

from paceline.clients.observer import Observer
from paceline.config.role_spec import RoleSpec, SharedSpec
from paceline.engines.host_options import HostOptions
from paceline.engines.host_runner import HostRunner
from paceline.engines.local_runner import LocalRunner
from paceline.engines.output import Line
from paceline.engines.plan import RunPlan
from paceline.engines.role_runner import Place
from paceline.errors import TransportError, UsageError
from paceline.messages.status import Status
from paceline.runtime.roles import register
from paceline.runtime.rundir import RunDir
from paceline.testing.host_cluster import end_all
from paceline.testing.launch import Launched

HOSTS = 10
LIGHT = 100
REAL = 20
LISTEN = "127.0.0.1:7412"
PATIENCE_S = 300.0
REGISTERED = "import idle_role\nfrom paceline.runtime.roles import register\nregister(idle_role.IdleRole())\n"
"""In the processes of the agents, which import it at their start."""


@contextmanager
def agents(folder: Path, token: Path, env: Mapping[str, str]) -> Iterator[list[Launched]]:
    """Ten agents that dial the supervisor, each with 10 cores to offer."""
    started: list[Launched] = []
    try:
        for number in range(HOSTS):
            words = ["agent", LISTEN, "--token-file", token, "--name", f"host-{number}", "--cores", "10"]
            started.append(Launched(words, folder / f"agent-{number}.txt", env))
        yield started
    finally:
        for agent in started:
            end_all(agent)


def measure_light(seconds: float) -> dict[str, float]:
    """Start the light roles by a `HostRunner` in this process."""
    register(IdleRole())
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(REGISTERED)
        paths = f"{folder}:{HERE}:{os.environ.get('PYTHONPATH', '')}"
        token = _token(folder)
        run = RunDir.create(folder / "run", token)
        options = HostOptions(listen=LISTEN, min_hosts=HOSTS, shared_dir=True)
        plan = RunPlan(script=HERE / "idle_role.py", run=folder / "run", cwd=folder, hosts=options, token_file=token)
        runner = HostRunner(plan, options, run, LocalRunner(run))
        stack.callback(runner.end)
        stack.enter_context(agents(folder, token, environment(PACELINE_CACHE=f"{folder}/cache", PYTHONPATH=paths)))
        runner.gather(lambda text: None)
        began = time.monotonic()
        names = {f"idle-{number}" for number in range(LIGHT)}
        for role in sorted(names):
            assert runner.has_room(role)
            runner.start(role, 1, _order(role))
        while names:
            event = runner.next_event(0.1)
            if isinstance(event, Line) and event.text.endswith("is there"):
                names.discard(event.name)
            if time.monotonic() > began + PATIENCE_S:
                raise ContenderError(f"{len(names)} of {LIGHT} roles were not there after {PATIENCE_S:.0f} s")
        there_s = time.monotonic() - began
        cpu, since = time.process_time(), time.monotonic()
        while time.monotonic() < since + seconds:
            runner.next_event(0.1)
        share = (time.process_time() - cpu) / (time.monotonic() - since)
    return {"roles": LIGHT, "there_s": there_s, "supervisor_cpu": share}


def _order(role: str) -> Callable[[Place | None], RoleSpec]:
    def order(place: Place | None) -> RoleSpec:
        assert place is not None
        return RoleSpec(role="idle", name=role, start=1, shared=SharedSpec(run=place.run), settings=msgspec.Raw(b"{}"))

    return order


def measure_real(seconds: float) -> dict[str, float]:
    """Start a run with workers and servers on all hosts."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        token, env = _token(folder), environment(PACELINE_CACHE=f"{folder}/cache")
        (folder / "out").mkdir()
        words = [
            "run", "--engine", "hosts", "--listen", LISTEN, "--token-file", token, "--shared-dir", "--min-hosts", HOSTS,
            "-w", REAL // 2, "-s", REAL // 2, "--slots", REAL // 2, "--checkpoint-every", "0", "--dir", folder / "run",
            HERE / "loop_sync.py", "--mb", "1", "--seconds", "100000", "--out", folder / "out",
        ]  # fmt: skip
        run = Launched(words, folder / "run.txt", env)
        stack.callback(run.end)
        stack.enter_context(agents(folder, token, env))
        joined = _until(lambda: run.out.read_text().count(" joins: ") >= HOSTS, run)
        there = _until(lambda: _members(folder / "run") >= REAL, run)
        supervisor = psutil.Process(run.process.pid)
        coordinator = next(child for child in supervisor.children(recursive=True) if "coordinator" in child.cmdline())
        version, since = _status(folder / "run").version, time.monotonic()
        before = [_cpu_s(process) for process in (supervisor, coordinator)]
        time.sleep(seconds)
        passed = time.monotonic() - since
        shares = [
            (_cpu_s(process) - cpu) / passed for process, cpu in zip((supervisor, coordinator), before, strict=True)
        ]
        steps = (_status(folder / "run").version - version) / passed
    return {
        "roles": REAL, "there_s": there - joined, "supervisor_cpu": shares[0], "coordinator_cpu": shares[1],
        "steps_per_s": steps,
    }  # fmt: skip


def _token(folder: Path) -> Path:
    token = folder / "token"
    token.touch(0o600)
    token.write_text(os.urandom(32).hex())
    return token


def _until(reached: Callable[[], bool], run: Launched) -> float:
    """Wait until `reached`; returns the time."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline or run.code is not None:
            raise ContenderError(f"not there after {PATIENCE_S:.0f} s, or the run has ended:\n{run.tail(15)}")
        time.sleep(0.05)
    return time.monotonic()


def _status(path: Path) -> Status:
    run = RunDir(path)
    observer = Observer(run.coordinator, run.token())
    try:
        return observer.status(timeout_s=5.0)
    finally:
        observer.close()


def _members(path: Path) -> int:
    """How many workers and servers the coordinator counts; 0 before there is a coordinator."""
    try:
        return sum(process.role in ("worker", "server") for process in _status(path).processes)
    except (TransportError, UsageError, OSError):
        return 0


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> int:
    """Measure, print and write the JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=("light", "real"))
    options.add_argument("--seconds", type=float, default=10.0, help="in which CPU time is measured [10]")
    options.add_argument("--json", type=Path, metavar="FILE")
    args = options.parse_args()
    end_on_sigterm()
    found: dict[str, dict[str, float]] = {}
    for name, run in (("light", measure_light), ("real", measure_real)):
        if args.only in (None, name):
            found[name] = run(args.seconds) | {"load": os.getloadavg()[0]}
            print(name, json.dumps({key: round(value, 3) for key, value in found[name].items()}), flush=True)
    if args.json is not None:
        write_json(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
