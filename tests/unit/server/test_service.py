"""The service of a server: it saves in the background, and survives its coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from tests.kit.core import segment
from tests.kit.server import BLOCKS, HangingStorage, bits_of, commit, model, opened, position, push

from paceline.blocks.tensors import bytes_of
from paceline.checkpoint.manifest import FORMAT, Manifest, folder_name, write_manifest
from paceline.checkpoint.storage import LocalStorage, Storage
from paceline.messages import (
    Abort,
    Assign,
    Beat,
    BeatAck,
    BlockFrame,
    Committed,
    Failed,
    Message,
    NotLoaded,
    Plan,
    Push,
    Register,
    Saved,
    SaveOver,
    Seal,
    Shutdown,
    Welcome,
)
from paceline.runtime.service_loop import pump
from paceline.server.service import ServerService
from paceline.transport.base import PeerUp, Received
from paceline.transport.inproc import InprocHub, InprocPort
from paceline.types import INIT_STEP, Fence, Kind, Placement

M = TypeVar("M", bound=Message)
SPEC = model()
NODE = "server-0/1"


class Stage:
    """One real server, and a coordinator that the test plays."""

    def __init__(self, storage: Storage | None) -> None:
        self.hub = InprocHub(strict=True)
        self.back = self.hub.port(NODE, listen="server-0")
        intro = Register(1, "server", "server-0", 4711, "here", self.back.address)
        self.service = ServerService(self.back, intro, storage=storage)
        self.front = self.coordinator(1)
        self.heard: list[Message] = []

    def coordinator(self, number: int) -> InprocPort:
        front = self.hub.port(f"coordinator/{number}", listen=f"coordinator-{number}")
        assert front.address is not None
        self.back.connect(front.address)
        return front

    def turn(self) -> None:
        pump(self.service, self.back)
        self.service.on_tick(time.monotonic())
        while (event := self.front.recv(0)) is not None:
            match event:
                case Received(message=message):
                    self.heard.append(message)
                case PeerUp():
                    pass

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.front.send(NODE, message)
        self.turn()

    def until(self, kind: type[M], fits: Callable[[M], bool] = lambda _: True) -> M:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self.turn()
            for message in self.heard:
                if isinstance(message, kind) and fits(message):
                    return message
            time.sleep(0.005)
        raise AssertionError(f"no {kind.__name__} among {self.heard}")

    def assign(self, incarnation: int = 0, folder: str = "", version: int = -1) -> None:
        placement = Placement(incarnation + 1, (NODE,) * len(BLOCKS), {NODE: "inproc://server-0"})
        self.say(Assign(1, incarnation, placement, SPEC, BLOCKS, True, 0, folder, version))

    def push(self, step: int, incarnation: int = 0) -> None:
        """Push all blocks, with the same values as `kit.push` makes for version 0."""
        ((store, mine),) = opened(SPEC, 1)
        push(SPEC, [(store, mine)], 0)
        values = store.snapshot()
        blocks = [b for b in BLOCKS if step == INIT_STEP or b.kind != Kind.FROZEN]
        frames = tuple(BlockFrame(b.index, b.dtype, b.numel) for b in blocks)
        seal = Seal(1.0, (), tuple((b.index, 0) for b in blocks))
        message = Push(7, incarnation, incarnation + 1, step, 0, Fence(1, 2 + step), step, frames, seal)
        self.front.send(NODE, message, [bytes_of(values[b.index].value) for b in blocks])
        self.turn()

    def initialise(self, *, save: bool, incarnation: int = 0) -> None:
        """Version 0, from the same values as `kit.push` makes."""
        self.push(INIT_STEP, incarnation)
        row = msgspec.structs.replace(commit(SPEC, 0, INIT_STEP), incarnation=incarnation)
        self.say(Committed(1, self.service.core.assignment.epoch, row, save=save))

    def complete(self, storage: Storage, saved: Saved) -> str:
        folder = folder_name(saved.incarnation, saved.version)
        chains = tuple(chain.hex() for _, chain in saved.chains)
        write_manifest(storage, folder, Manifest(FORMAT, SPEC, position(saved.version), saved.files, chains))
        return folder


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(LocalStorage(tmp_path))
    yield made
    made.service.close()


def test_a_saved_version_is_reported_until_the_coordinator_ends_the_save(stage: Stage, tmp_path: Path) -> None:
    stage.until(Register)
    stage.assign()
    stage.initialise(save=True)
    saved = stage.until(Saved)
    assert (saved.version, saved.problem) == (0, "")
    assert sorted(b for file in saved.files for b in file.blocks) == [b.index for b in BLOCKS]
    assert [b for b, _ in saved.chains] == [b.index for b in BLOCKS]
    stage.heard.clear()
    stage.until(Saved)
    stage.say(SaveOver(1, 0, 0))
    stage.heard.clear()
    stage.until(Beat)
    stage.until(Beat)
    assert not [m for m in stage.heard if isinstance(m, Saved)]
    assert stage.service.store.checkpoints.frozen is None

    before = bits_of(stage.service.store.snapshot())
    folder = stage.complete(LocalStorage(tmp_path), saved)
    stage.assign(1, folder, 0)
    assert bits_of(stage.service.store.snapshot()) == before
    beat = stage.until(Beat, lambda b: b.incarnation == 1)
    assert (beat.epoch, beat.applied) == (2, 0)
    assert dict(saved.chains) == stage.service.core.own.chains


def test_a_failed_save_is_reported_and_training_goes_on() -> None:
    stage = Stage(None)
    stage.until(Register)
    stage.assign()
    stage.initialise(save=True)
    assert "without a place" in stage.until(Saved).problem
    stage.say(SaveOver(1, 0, 0))
    assert stage.until(Beat, lambda b: b.applied == 0).incarnation == 0


def test_a_missing_checkpoint_is_reported_by_name(stage: Stage) -> None:
    stage.until(Register)
    stage.assign(1, "i0000-v0000000005", 5)
    message = stage.until(NotLoaded)
    assert message.folder == "i0000-v0000000005"
    assert "incomplete" in message.problem


def test_a_rewind_gives_up_the_version_that_is_being_saved(tmp_path: Path) -> None:
    storage = HangingStorage(tmp_path)
    stage = Stage(storage)
    stage.until(Register)
    stage.assign()
    stage.initialise(save=True)
    assert storage.reached.wait(20)
    stage.assign(1)
    assert stage.service.store.checkpoints.frozen is None
    storage.let_go.set()
    stage.initialise(save=True, incarnation=1)
    saved = stage.until(Saved)
    assert (saved.incarnation, saved.version) == (1, 0)
    assert storage.files(folder_name(0, 0)) == []
    assert not [m for m in stage.heard if isinstance(m, Saved) and m.incarnation == 0]
    stage.service.close()


def test_a_server_stops_writing_a_checkpoint_that_the_coordinator_ends(tmp_path: Path) -> None:
    storage = HangingStorage(tmp_path)
    stage = Stage(storage)
    stage.until(Register)
    stage.assign()
    stage.initialise(save=True)
    assert storage.reached.wait(20)
    stage.say(SaveOver(1, 0, 0))
    assert stage.service.store.checkpoints.frozen is None
    storage.let_go.set()
    stage.service.close()
    stage.turn()
    assert storage.files(folder_name(0, 0)) == []
    assert not [m for m in stage.heard if isinstance(m, Saved)]


def test_a_server_registers_with_each_coordinator_and_reports_its_versions(stage: Stage) -> None:
    first = stage.until(Register)
    assert (first.incarnation, first.epoch, first.applied) == (0, 0, -2)
    stage.say(Welcome(1, 1, 0, None, 0.05, 0.7))
    assert (stage.service.core.heartbeat_s, stage.service.core.replication.reach_s) == (0.05, 0.7)
    stage.assign()
    stage.initialise(save=False)
    stage.front.close()
    for _ in range(3):
        pump(stage.service, stage.back)
        stage.service.on_tick(time.monotonic())
    assert stage.service.ended is None, "a server survives its coordinator"
    stage.heard.clear()
    stage.front = stage.coordinator(2)
    again = stage.until(Register)
    assert (again.name, again.start, again.incarnation, again.epoch, again.applied) == ("server-0", 4711, 0, 1, 0)
    stage.heard.clear()
    stage.say(BeatAck(2, "running", True))
    assert not [m for m in stage.heard if isinstance(m, Register)]
    stage.say(BeatAck(2, "running", False))
    assert stage.until(Register).applied == 0
    stage.say(Shutdown(1, "enough"))
    assert stage.service.ended == "enough"


def test_an_update_that_raises_fails_the_job_and_names_the_parameters(stage: Stage) -> None:
    """A server that is started again would raise again, so it does not die: it reports until the job has failed."""
    stage.until(Register)
    stage.assign()
    stage.initialise(save=False)
    stage.say(Plan(1, (segment(slots=1),), revision=1))
    stage.push(0)
    broken = ({**SPEC.optimizer.hyper[0], "lr": None},)
    stage.say(Committed(1, 1, msgspec.structs.replace(commit(SPEC, 1, 0), hyper=broken)))
    failed = stage.until(Failed)
    assert failed.kind == "script"
    assert failed.trace.startswith("UpdateError: SGD cannot update weight")
    assert "TypeError" in failed.trace
    stage.heard.clear()
    stage.say(Committed(1, 1, commit(SPEC, 2, 1)))
    assert stage.until(Failed) == failed, "it is repeated, since the first report may be lost"
    assert stage.service.ended is None
    stage.say(Abort(1, "script", "server-0 failed"))
    assert stage.service.ended == "server-0 failed"
