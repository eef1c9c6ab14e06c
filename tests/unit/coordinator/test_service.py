"""A coordinator around its core, with real servers and a real worker, all in one thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from paceline.checkpoint.manifest import folder_name, list_checkpoints
from paceline.checkpoint.storage import LocalStorage, Storage
from paceline.config.dials import ClusterSpec
from paceline.coordinator.service import CoordinatorService
from paceline.coordinator.status import describe
from paceline.coordinator.store import LogStore
from paceline.messages import Exited, Finish, JobArgs, Register, Summary
from paceline.runtime.service_loop import pump
from paceline.server.service import ServerService
from paceline.transport.base import PeerUp, Received
from paceline.transport.inproc import InprocHub, InprocPort
from paceline.worker.job import Job
from paceline.worker.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")

ARGS = JobArgs(3, "bsp", None, 1)


class Cluster:
    """Roles on one hub that run whenever one of them waits. A test can stop and start any of them."""

    def __init__(self, path: Path, spec: ClusterSpec, storage: Storage) -> None:
        self.path, self.spec, self.storage = path, spec, storage
        self.hub = InprocHub(strict=True)
        self._stops: dict[str, Callable[[], None]] = {}
        self._starts = 0
        self.hub.add_pump(self._tick)
        self._services: dict[str, tuple[CoordinatorService | ServerService, InprocPort]] = {}
        self.start_coordinator()
        for number in range(spec.servers):
            self.start_server(number)

    @property
    def coordinator(self) -> CoordinatorService:
        service = self._services["coordinator"][0]
        assert isinstance(service, CoordinatorService)
        return service

    def _tick(self) -> bool:
        busy = False
        for service, port in list(self._services.values()):
            busy |= pump(service, port)
            service.on_tick(time.monotonic())
        return busy

    def start_coordinator(self) -> None:
        log = LogStore(self.path / "log.sqlite")
        port = self.hub.port(f"coordinator/{secrets.token_hex(4)}", listen="coordinator")
        service = CoordinatorService(port, self.spec, log, run=str(self.path), storage=self.storage)
        self._services["coordinator"] = service, port

        def stop() -> None:
            port.close()
            service.close()
            log.close()

        self._stops["coordinator"] = stop

    def start_server(self, number: int) -> None:
        name = f"server-{number}"
        node = f"{name}/{secrets.token_hex(4)}"
        port = self.hub.port(node, listen=node.replace("/", "-"))
        self._starts += 1
        intro = Register(1, "server", name, self._starts, "here", port.address)
        service = ServerService(port, intro, storage=self.storage)
        port.connect("inproc://coordinator")
        self._services[name] = service, port

        def stop() -> None:
            port.close()
            service.close()

        self._stops[name] = stop

    def stop(self, name: str) -> ServerService | CoordinatorService:
        service, _ = self._services.pop(name)
        self._stops.pop(name)()
        return service

    def kill_server(self, number: int) -> None:
        """Stop a server and report its exit, as an engine does."""
        service = self.stop(f"server-{number}")
        assert isinstance(service, ServerService)
        intro = service.introduction
        exited = Exited(1, intro.name, intro.start, -9)
        self.coordinator.on_event(Received("observer/1", exited), time.monotonic())

    def worker(self, number: int = 0) -> Job:
        port = self.hub.port(f"worker-{number}/{secrets.token_hex(4)}")
        session = Session(port, Register(1, "worker", f"worker-{number}", 1, "here", None, ARGS), timeout_s=30.0)
        session.open("inproc://coordinator")
        return Job(session, ARGS, lambda failed: port.close())

    def finish(
        self, meanwhile: Callable[[], None] = lambda: None, after_s: float = 0.0, timeout_s: float = 20.0
    ) -> dict[str, Any]:
        """Ask for the summary and return it; `meanwhile` is called once, `after_s` after the request."""
        port = self.hub.port(f"observer/{secrets.token_hex(4)}")
        port.connect("inproc://coordinator")
        began, called = time.monotonic(), False
        try:
            while time.monotonic() < began + timeout_s:
                if not called and time.monotonic() > began + after_s:
                    called = True
                    meanwhile()
                match port.recv(0.05):
                    case PeerUp(peer=peer):
                        port.send(peer, Finish(1))
                    case Received(message=Summary(json=text)):
                        return dict(msgspec.json.decode(text))
        finally:
            port.close()
        raise AssertionError("no summary")

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not until():
            assert time.monotonic() < deadline, self.coordinator.status(time.monotonic())
            self.hub.pump()
            time.sleep(0.002)

    def close(self) -> None:
        for name in list(self._services):
            self.stop(name)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make(name: str = "run", **dials: Any) -> Cluster:
        path = tmp_path / name
        path.mkdir()
        storage = dials.pop("storage", LocalStorage(path / "checkpoints"))
        made.append(Cluster(path, ClusterSpec(**dials), storage))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def train(cluster: Cluster, at: Callable[[int], None] = lambda step: None, phases: int = 1) -> Job:
    """Train ten steps of two slots in each phase; `at` is called in the turn of each step's first slot."""
    torch.manual_seed(3)
    job = cluster.worker()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8192), torch.nn.Tanh(), torch.nn.Linear(8192, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.prepare(model, optimizer)
    x = torch.randn(160, 4, generator=torch.Generator().manual_seed(1))
    data = list(zip(x, x.sum(1, keepdim=True), strict=True))
    seen: set[int] = set()
    for _ in range(phases):
        for inputs, wanted in job.batches(data, 8, slots=2):
            optimizer.zero_grad()
            loss = (model(inputs) - wanted).square().mean()
            loss.backward()
            job.log(loss=loss)
            if job.step not in seen:
                seen.add(job.step)
                at(job.step)
            optimizer.step()
    return job


def test_a_run_writes_checkpoints_keeps_the_newest_and_saves_its_last_version(start: Callable[..., Cluster]) -> None:
    cluster = start(servers=2, checkpoint_steps=3, keep_checkpoints=2)
    plain = start("plain", servers=1)

    def slowly(step: int) -> None:
        cluster.wait(lambda: cluster.coordinator.core.settled)

    train(cluster, slowly).close()
    status = cluster.coordinator.status(time.monotonic())
    assert status.checkpoint is not None
    assert status.warning == ""
    assert [(p.name, p.role) for p in status.processes if p.role == "server"] == [
        ("server-0", "server"),
        ("server-1", "server"),
    ]
    summary = cluster.finish()
    assert summary["state"] == "done"
    assert summary["checkpoint"] == folder_name(0, 10)
    assert (summary["rewinds"], summary["recomputed_steps"], summary["generations"]) == (0, 0, 1)
    found = list_checkpoints(cluster.storage, verify=True)
    assert [c.problem for c in found] == [None, None]
    assert found[-1].folder == folder_name(0, 10)
    train(plain).close()
    without = plain.finish()
    assert without["digest"] == summary["digest"]
    assert without["checkpoint"] is None
    assert summary["seconds"] > 0


def test_a_run_that_loses_a_server_rewinds_and_ends_with_the_same_bits(start: Callable[..., Cluster]) -> None:
    cluster = start(servers=2, checkpoint_steps=5, rewinds=True)
    core = cluster.coordinator.core
    lines: list[str] = []
    lost: list[int] = []

    def kill(step: int) -> None:
        if step == 8:
            cluster.wait(lambda: core.settled and core.machines.checkpoints.newest is not None)
            lost.append(
                core.version - core.machines.checkpoints.newest.position.version
                if core.machines.checkpoints.newest is not None
                else -1
            )
            cluster.kill_server(1)
            lines.append(describe(cluster.coordinator.status(time.monotonic())))
            cluster.start_server(1)

    train(cluster, kill).close()
    summary = cluster.finish()
    assert "rewinding to version" in lines[0]
    assert (summary["rewinds"], summary["incarnation"], summary["state"]) == (1, 1, "done")
    assert summary["recomputed_steps"] == lost[0] > 0
    plain = start("plain")
    train(plain).close()
    assert plain.finish()["digest"] == summary["digest"]


@pytest.mark.parametrize("version", [10, -1])
def test_a_run_that_loses_a_server_after_its_end_is_unfinished_until_it_trains_again(
    version: int, start: Callable[..., Cluster]
) -> None:
    cluster = start(servers=2, checkpoint_steps=10, rewinds=True)

    def slowly(step: int) -> None:
        cluster.wait(lambda: cluster.coordinator.core.settled)

    train(cluster, slowly, phases=2).close()
    slowly(20)
    core = cluster.coordinator.core
    assert core.version == 20
    # As if the server had been lost before anything later was saved.
    core.machines.checkpoints.kept.complete = [
        c for c in core.machines.checkpoints.kept.complete if c.position.version <= version
    ]
    cluster.kill_server(0)
    summary = cluster.finish()
    assert summary["state"] == "unfinished"
    assert summary["digest"] is None
    assert core.version <= version
    assert cluster.coordinator.status(time.monotonic()).unfinished
    cluster.start_server(0)
    train(cluster, phases=2).close()
    again = cluster.finish()
    assert again["state"] == "done"
    plain = start("plain")
    train(plain, phases=2).close()
    assert plain.finish()["digest"] == again["digest"]


def test_a_restarted_coordinator_has_the_same_digest_and_continues_the_run_time(start: Callable[..., Cluster]) -> None:
    cluster = start(servers=2, checkpoint_steps=4)
    train(cluster).close()
    core = cluster.coordinator.core
    cluster.wait(lambda: core.settled)
    cluster.coordinator.log.put("notes", '{"seconds": 1000.0, "lost_workers": 3}')
    cluster.stop("coordinator")
    cluster.start_coordinator()
    summary = cluster.finish()
    assert (summary["generations"], summary["state"], summary["steps"]) == (2, "done", 10)
    assert summary["seconds"] == pytest.approx(1000.0)
    assert summary["lost_workers"] == 3
    plain = start("plain")
    train(plain).close()
    assert plain.finish()["digest"] == summary["digest"]


def test_the_time_that_the_loss_of_a_coordinator_cost_counts(start: Callable[..., Cluster]) -> None:
    cluster = start()
    train(cluster).close()
    notes = f'{{"seconds": 1000.0, "at": {time.time() - 50.0}}}'

    def seconds(**changes: Any) -> float:
        """The seconds of a run whose last commit is made right after the start of the next coordinator."""
        cluster.coordinator.log.put("notes", notes)
        cluster.stop("coordinator")
        cluster.spec = replace(cluster.spec, **changes)
        cluster.start_coordinator()
        timeline = cluster.coordinator.timeline
        timeline.committed(11, 1.0, time.monotonic())
        return timeline.seconds

    assert seconds() == pytest.approx(1050.0, abs=5.0)
    assert seconds(resume="") == pytest.approx(1000.0, abs=5.0), "nothing ran before the run was resumed"
    cluster.stop("coordinator")
    cluster.spec = replace(cluster.spec, resume=None)
    cluster.start_coordinator()
    cluster.coordinator.timeline.committed(11, 1.0, time.monotonic())
    assert cluster.coordinator.timeline.seconds == pytest.approx(1000.0, abs=5.0), "the notes know of the resume"


def test_the_last_line_of_a_stopped_run_shows_the_planned_epochs_and_no_workers(start: Callable[..., Cluster]) -> None:
    cluster = start(max_steps=3)
    train(cluster).close()
    cluster.wait(lambda: not cluster.coordinator.status(time.monotonic()).workers_alive)
    status = cluster.coordinator.status(time.monotonic())
    assert describe(status).startswith("step 3/3 · epoch 0/1 · ")
    assert "worker" not in describe(status)


def test_the_digest_is_read_again_if_a_server_dies_during_the_summary(start: Callable[..., Cluster]) -> None:
    cluster = start(servers=2, checkpoint_steps=1, rewinds=True)
    train(cluster).close()
    folder = cluster.finish()["checkpoint"]
    assert folder == folder_name(0, 10)
    before = cluster.coordinator
    before._summary = None  # as if no summary was requested yet
    service = cluster.stop("server-0")
    assert isinstance(service, ServerService)

    def restart() -> None:
        """Report the exit late: until then the coordinator waits for an answer of the dead server."""
        exited = Exited(1, "server-0", service.introduction.start, -9)
        before.on_event(Received("observer/1", exited), time.monotonic())
        cluster.start_server(0)

    summary = cluster.finish(restart, after_s=2.5)
    assert (summary["state"], summary["incarnation"], summary["recomputed_steps"]) == ("done", 1, 0)
    plain = start("plain")
    train(plain).close()
    assert plain.finish()["digest"] == summary["digest"]


class Full(LocalStorage):
    """A storage that is full for one of the servers until the test frees it."""

    full = False

    def create(self, name: str) -> Any:
        if self.full and "/server-0" in name:
            raise OSError(28, "No space left on device")
        return super().create(name)


def test_a_full_disk_is_a_warning_and_training_goes_on(start: Callable[..., Cluster], tmp_path: Path) -> None:
    storage = Full(tmp_path / "ckpt")
    cluster = start(servers=2, checkpoint_steps=2, storage=storage)
    core = cluster.coordinator.core
    lines: list[str] = []

    def fill(step: int) -> None:
        cluster.wait(lambda: core.settled)
        if step == 4:
            storage.full = True
        if step == 8:
            lines.append(describe(cluster.coordinator.status(time.monotonic())))
            cluster.wait(lambda: all(c.problem is None for c in list_checkpoints(storage, verify=False)))
            storage.full = False

    train(cluster, fill).close()
    assert "warning: no checkpoint of version" in lines[0]
    assert "No space left on device" in lines[0]
    assert "is kept" in lines[0]
    summary = cluster.finish()
    assert (summary["state"], summary["warning"], summary["checkpoint"]) == ("done", "", folder_name(0, 10))
    assert all(c.problem is None for c in list_checkpoints(storage, verify=True)), "no incomplete checkpoint remains"
