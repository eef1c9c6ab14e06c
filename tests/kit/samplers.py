"""A sampler and a worker that asks it, in one process: real ports, a real script's thread, no coordinator."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from paceline.core.sampler.preparing import SamplerCore
from paceline.data.batch_source import LocalBatches, SlotKey
from paceline.data.data_key import data_key
from paceline.data.data_spec import DataSpec, open_data
from paceline.data.fingerprint import Fingerprints
from paceline.data.loader import BatchMaker
from paceline.messages import Message, Samplers, Warn
from paceline.sampler.job import Preparation
from paceline.sampler.service import Introduction, SamplerService
from paceline.transport.zmq.port import ZmqPort
from paceline.types import Segment
from paceline.worker.sampled_batches import SampledBatches
from paceline.worker.sampler_link import SamplerLink
from paceline.worker.session import Session

SEED = 7
TOKEN = b"t" * 32


def segment_of(spec: DataSpec, **changes: Any) -> Segment:
    """One phase of one epoch, with two slots in a step."""
    steps = -(-spec.length // (2 * spec.batch_size))
    order, revision = spec.order, changes.get("revision", 0)
    return Segment(
        0, 0, 0, 0, steps, 1, spec.length, 2, spec.batch_size, order.shuffle, False, 0, "bsp", revision,
        block_size=order.block_size, block_window=order.block_window, weights=order.weights,
    )  # fmt: skip


class AskingSession:
    """What `SampledBatches` needs of a session: a port, and the warnings that were sent."""

    def __init__(self, name: str = "worker-0") -> None:
        self.port = ZmqPort(f"{name}/1-1-abc", TOKEN)
        self.warned: list[str] = []
        self.samplers = SamplerLink(self.port, itertools.count(1).__next__)

    def pump(self, awaited: str, wait_s: float) -> None:
        event = self.port.recv(wait_s)
        if event is not None:
            assert self.samplers.handle(event, time.monotonic())

    def ask(self, make: Callable[[int], Message], expect: object) -> None:
        message = make(0)
        assert isinstance(message, Warn)
        self.warned.append(message.text)

    def meet(self, *samplers: SamplerService) -> None:
        """Learn who the samplers are, and wait for the sessions."""
        addresses = {service.node: service.address for service in samplers}
        self.samplers.roster(Samplers(1, tuple(addresses.items())))
        deadline = time.monotonic() + 10.0
        while len(self.samplers._asking._up) < len(addresses):
            assert time.monotonic() < deadline
            self.pump("", 0.05)


def key_of(spec: DataSpec, phase: int = 0, seed: int = SEED) -> str:
    maker = BatchMaker(spec, seed)
    try:
        return data_key(phase, seed, spec, Fingerprints(seed).find(maker)[0])
    finally:
        maker.close()


@contextmanager
def sampler(spec: DataSpec, name: str = "sampler-0", *, data: str | None = None) -> Iterator[SamplerService]:
    """A sampler whose script is in a loop over the data of `spec`."""
    service = SamplerService(
        lambda: ZmqPort(f"{name}/1-1-abc", TOKEN, listen="127.0.0.1"),
        Introduction(name, 1, "here"),
        lambda: None,
        timeout_s=60.0,
    )
    service.start()
    over = threading.Event()
    maker = BatchMaker(spec, SEED)
    service.desk.open(0, SamplerCore(name, key_of(spec) if data is None else data, 1 << 28))

    def prepare() -> None:
        try:
            Preparation(service, maker).run(over.is_set)
        finally:
            maker.close()  # loader processes end with the thread that has forked them

    script = threading.Thread(target=prepare, name="script")
    script.start()
    try:
        yield service
    finally:
        over.set()
        script.join()
        service.desk.close()
        service.close()


@contextmanager
def asking(spec: DataSpec, *services: SamplerService) -> Iterator[tuple[SampledBatches, AskingSession]]:
    """The batches of a worker that asks these samplers."""
    session = AskingSession()
    batches = SampledBatches(LocalBatches(spec, SEED), cast(Session, session))
    try:
        session.meet(*services)
        batches.open(key_of(spec))
        yield batches, session
    finally:
        batches.close()
        session.port.close()


def local(spec: DataSpec, key: SlotKey) -> Any:
    """The batch that a worker prepares itself."""
    batches = LocalBatches(spec, SEED)
    try:
        return batches.get(key).content
    finally:
        batches.close()


__all__ = ["SEED", "asking", "key_of", "local", "open_data", "sampler", "segment_of"]
