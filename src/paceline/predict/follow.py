"""Follows a running job: a thread reads its versions from the servers and swaps them into the served model."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from paceline.blocks.tensors import tensor_of
from paceline.clients.redial import Find, Redial
from paceline.core.effects import Send
from paceline.core.layout import cut
from paceline.core.predict.reader import Fill, Output, Reader, ReaderLimits, Restart, Whole
from paceline.core.predict.signature import Signature
from paceline.errors import MismatchError, PacelineError, PeerLostError, PeerUnknownError
from paceline.predict.models import Loaded, Model, warm_up
from paceline.predict.module import check_tensors
from paceline.predict.module import fill as fill_module
from paceline.predict.runners import TorchRunner
from paceline.transport.base import Frame, PeerDown, PeerUp, Port, Received
from paceline.types import COORDINATOR, ModelSpec, NodeId

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_SILENT_S = 2.0  # without an answer of the coordinator for so long, the job may have ended: look for what it saved last


@dataclass(frozen=True, slots=True)
class Saved:
    """What a job has saved last: a version, when it was committed (`time.time()`), and its tensors by name."""

    incarnation: int
    version: int
    committed_at: float
    read: Callable[[], Mapping[str, torch.Tensor]]


class Weights:
    """The tensors of one module, by block. Blocks are copied in; which ones have come is noted until `begin`."""

    def __init__(self, module: torch.nn.Module, spec: ModelSpec) -> None:
        """Raises MismatchError if the module is not that of the job."""
        self.module = module
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data.contiguous()  # blocks have the elements in the order of the shape
        tensors = check_tensors(module, spec.tensors)
        flat = [tensors[t.name].view(-1) for t in spec.tensors]
        self._blocks = cut(spec.tensors)
        self._targets = [
            [(p.offset, p.numel, flat[p.tensor][p.start : p.start + p.numel]) for p in block.pieces]
            for block in self._blocks
        ]
        self._came: set[int] = set()

    def begin(self) -> None:
        """Note that no block of the next version has come."""
        self._came.clear()

    def fill(self, block: int, content: Frame) -> None:
        """Copy one block in. Nothing of `content` is read after the call."""
        if content.nbytes != self._blocks[block].nbytes:
            raise ValueError(f"block {block} has {content.nbytes} bytes, not {self._blocks[block].nbytes}")
        values = tensor_of(content, self._blocks[block].dtype)
        for offset, numel, target in self._targets[block]:
            target.copy_(values[offset : offset + numel])
        self._came.add(block)

    def fill_all(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a whole version in."""
        fill_module(self.module, tensors)
        self._came.update(range(len(self._targets)))

    def complete(self, other: Weights) -> None:
        """Copy the blocks that have not come from `other`, which has the version before."""
        for block, targets in enumerate(self._targets):
            if block not in self._came:
                for (_, _, target), (_, _, source) in zip(targets, other._targets[block], strict=True):
                    target.copy_(source)


class Follower:
    """Reads the versions of a job into `model`, until `close`. Nothing of the job depends on it.

    `build` makes a module of the job's model. Two are made: one answers requests while the other is filled. The
    signature is that of the module. `last` finds what the job has saved last; it is asked when the job is silent, which
    may have ended with a version that was not read. If the job has another model than `build` makes, `problem` says so.
    """

    def __init__(
        self,
        model: Model,
        build: Callable[[], torch.nn.Module],
        signature: Signature,
        open_port: Callable[[], Port],
        find: Find,
        *,
        last: Callable[[], Saved | None] = lambda: None,
        limits: ReaderLimits | None = None,
        warm_rows: int = 1,
    ) -> None:
        self.model = model
        self.problem = ""
        self._build = build
        self._signature = signature
        self._open_port = open_port
        self._find = find
        self._last = last
        self._looked = 0.0
        self._reader = Reader(limits)
        self._warm_rows = warm_rows
        self._sets: tuple[Weights, Weights] | None = None
        self._loaded: Loaded | None = None
        self._heard = time.time()
        self._connected: dict[NodeId, str] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. The model keeps the version that it has."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._follow()
            except MismatchError as error:
                self.problem = str(error)
                logger.error("this job cannot be followed: %s", error)
                return
            except (PacelineError, OSError, ValueError):
                logger.warning("following the job is begun anew", exc_info=True)
                self._reader = Reader(self._reader.limits)
                self._end.wait(1.0)

    def _follow(self) -> None:
        port = self._open_port()
        redial = Redial(port, self._find)
        self._connected.clear()
        try:
            while not self._end.is_set():
                now = time.monotonic()
                redial.tick(now)
                self._carry_out(port, redial, self._reader.tick(now), ())
                self._connect(port)
                self._look_when_silent(now)
                event = port.recv(_POLL_S)
                while event is not None:
                    redial.note(event)
                    match event:
                        case PeerUp(peer=peer, address=address) if address in self._connected.values():
                            self._reader.up(peer)
                        case PeerDown(peer=peer):
                            self._carry_out(port, redial, self._reader.down(peer), ())
                        case Received(peer=peer, message=message, frames=frames):
                            found = self._reader.handle(peer, message, time.monotonic())
                            self._carry_out(port, redial, found, frames)
                            del frames
                    event = port.recv(0.0)
        finally:
            port.close()

    def _connect(self, port: Port) -> None:
        """Connect to the servers of the placement, and to no others."""
        wanted = self._reader.addresses
        if wanted == self._connected:
            return
        for peer, address in self._connected.items():
            if wanted.get(peer) != address:
                with suppress(PacelineError):
                    port.disconnect(address)
        for peer, address in wanted.items():
            if self._connected.get(peer) != address:
                port.connect(address)
        self._connected = wanted

    def _carry_out(self, port: Port, redial: Redial, outputs: Sequence[Output], frames: Sequence[Frame]) -> None:
        for output in outputs:
            match output:
                case Send(to=to, message=message):
                    peer = redial.peer if to == COORDINATOR else to
                    if peer is not None:
                        with suppress(PeerLostError, PeerUnknownError):
                            port.send(peer, message)
                case Fill(blocks=blocks):
                    spare = self._spare()
                    for block, frame in zip(blocks, frames, strict=True):
                        spare.fill(block, frame)
                case Restart():
                    self._void_spare()
                case Whole():
                    self._swap(output)
        if self._reader.heard > 0:
            self._heard = time.time() - (time.monotonic() - self._reader.heard)

    def _look_when_silent(self, now: float) -> None:
        """If the coordinator is silent, serve what the job has saved last, if that is newer; once for each silence."""
        heard = self._reader.heard
        if self._sets is None or now - heard < _SILENT_S or self._looked == heard:
            return
        self._looked = heard
        saved = self._last()
        if saved is None or (saved.incarnation, saved.version) <= (self._reader.incarnation, self._reader.version):
            return
        self._void_spare()
        self._spare().fill_all(saved.read())
        self._reader.adopt(saved.incarnation, saved.version)
        self._swap(Whole(saved.incarnation, saved.version, now - (time.time() - saved.committed_at)))

    def _void_spare(self) -> None:
        if self._sets is not None:
            self._sets[1].begin()

    def _spare(self) -> Weights:
        """The module that does not answer requests."""
        if self._sets is None:
            following = self._reader.following
            assert following is not None
            assert following.model is not None
            self._sets = Weights(self._build(), following.model), Weights(self._build(), following.model)
        return self._sets[1]

    def _swap(self, whole: Whole) -> None:
        """Let the version that is whole answer from the next batch on; its predecessor becomes the spare."""
        spare, old = self._spare(), self._loaded
        assert self._sets is not None
        used = self._sets[0]
        if old is not None:
            spare.complete(used)
        loaded = Loaded(
            TorchRunner(spare.module, self._signature),
            str(whole.version),
            incarnation=whole.incarnation,
            version=whole.version,
            committed_at=time.time() - (time.monotonic() - whole.committed),
            seen=lambda: self._heard,
        )
        if old is None:
            warm_up(loaded, self._warm_rows)
        self.model.replace(loaded)
        if old is not None:
            old.retire()
        self._loaded, self._sets = loaded, (spare, used)
        used.begin()
