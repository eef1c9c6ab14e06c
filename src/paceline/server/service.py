"""A server process: the core, a port, and a blocking poll."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from paceline.blocks.block_state import FrozenContents, FrozenVersion
from paceline.blocks.threads import Threads
from paceline.checkpoint.manifest import folder_name
from paceline.checkpoint.storage import Storage
from paceline.clients.links import Links
from paceline.clients.redial import is_coordinator
from paceline.core.effects import Send
from paceline.core.message_parts import PART_NBYTES
from paceline.core.server.dispatch import ServerCore
from paceline.errors import PeerLostError, PeerUnknownError, UpdateError
from paceline.messages import Abort, BeatAck, Failed, Message, Probe, Register, Shutdown, Welcome
from paceline.server.checkpoint_writer import CheckpointWriter
from paceline.server.content_hasher import ContentHasher
from paceline.server.dense_store import DenseStore
from paceline.telemetry import tracing
from paceline.transport.base import Event, PeerDown, PeerUp, Port, Received
from paceline.types import COORDINATOR, NodeId

logger = logging.getLogger(__name__)


class ServerService:
    """Passes the events of one port to the core, and sends the messages that the core returns.

    The service introduces the server to each new coordinator; without a coordinator the server keeps its blocks. It
    writes checkpoints in the background until `close`, and keeps sessions with the servers that copy its blocks.
    """

    def __init__(
        self,
        port: Port,
        introduction: Register,
        *,
        storage: Storage | None = None,
        threads: int = 1,
        part_nbytes: int = PART_NBYTES,
        term: int = 0,
        ordered: bool = False,
    ) -> None:
        """Large updates use `threads` threads, the caller's included; for `part_nbytes` see `ServerCore`.

        `term` is the term of the place of the checkpoints, which is `storage`. With `ordered`, a member of a group adds
        slots in slot order.
        """
        self._term = term
        self.port = port
        self.introduction = introduction
        self._threads = Threads(threads)
        self.core = ServerCore(
            port.node,
            lambda: DenseStore(storage, memory=port.memory, threads=self._threads, ordered=ordered),
            part_nbytes=part_nbytes,
        )
        self.store = cast(DenseStore, self.core.own.store)
        self.coordinator: NodeId | None = None
        self.ended: str | None = None
        self._writer = CheckpointWriter(storage, port.node)
        self._hasher = ContentHasher()
        self._frozen: FrozenVersion | None = None
        self._links = Links(port)
        self._failure: Failed | None = None
        self._next_report = 0.0
        self._epoch = (0, 0)
        self._now = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """Handle one event of the port."""
        self._now = now
        match event:
            case PeerUp(peer=peer, address=address):
                self._links.note(event, now)
                if address is not None and is_coordinator(peer):
                    self.coordinator = peer
                    self._introduce()
                else:
                    self._send(self.core.greet(peer, now))
            case PeerDown(peer=peer):
                self._links.note(event, now)
                self.core.forget(peer)
                if peer == self.coordinator:
                    self.coordinator = None
            case Received(peer=peer, message=Welcome() as welcome) if peer == self.coordinator:
                self.core.handle(COORDINATOR, welcome, (), now)
            case Received(peer=peer, message=BeatAck() as ack):
                self.core.handle(COORDINATOR, ack, (), now)
                if not ack.known and peer == self.coordinator:
                    self._introduce()
            case Received(message=Shutdown(reason=reason)):
                self.ended = reason
            case Received(peer=peer, message=message, frames=frames):
                if self._failure is None or isinstance(message, Abort):
                    try:
                        self._handle(peer, message, frames, now)
                    except UpdateError as error:
                        self._fail(error)
                if self.core.failed is not None:
                    self.ended = self.core.failed.reason

    def _handle(self, peer: NodeId, message: Message, frames: Sequence[memoryview], now: float) -> None:
        sends = self.core.handle(peer, message, frames, now)
        at = self.core.assignment.at
        if self._epoch != at or isinstance(message, Probe):
            self._epoch = at
            self._links.need(self.core.peers, now)
        if sends:
            self._send(sends)
        frozen = self.core.contents.take()
        if frozen and not self._hasher.begin(cast(Sequence[FrozenContents], frozen)):
            self.core.contents.void()
        if self.core.ahead.is_due:
            self._send(self.core.proceed())
        if self.store.checkpoints.frozen is not self._frozen or self._frozen is not None:
            self._follow_saving()

    def carry_out(self, act: Callable[[float], Sequence[Send]]) -> None:
        """Let the core do `act`, which gets the time, and send what it returns."""
        if self._failure is not None:
            return
        try:
            self._send(act(self._now))
            self._send(self.core.proceed())
        except UpdateError as error:
            self._fail(error)

    def doubt_group(self, now: float) -> None:
        """Ask the other members of the group for a sign of life: this member waits for them."""
        self._now = now
        sends = self.core.group_reach.doubt(now)
        self._links.need(self.core.peers, now)
        self._send(sends)

    def trust_group(self) -> None:
        """Stop to ask the other members: this member does not wait any more."""
        self.core.group_reach.trust()

    def tell(self, messages: Sequence[Message]) -> None:
        """Send `messages` to the coordinator, if there is one."""
        self._send([Send(COORDINATOR, message) for message in messages])

    def _fail(self, error: UpdateError) -> None:
        """Fail the job: the blocks are half updated, and a server that is started again would raise again.

        From now on this server only repeats its report, until the coordinator ends it.
        """
        logger.error("an update failed", exc_info=error)
        self._failure = Failed(1, "script", f"{type(error).__name__}: {error}")
        self._send([Send(COORDINATOR, self._failure)])

    def on_tick(self, now: float) -> None:
        """Report a checkpoint that is written, and send the messages of the core that are due."""
        self._now = now
        if self._failure is not None:
            self._repeat_failure(now)
            return
        outcome = self._writer.poll()
        if outcome is not None:
            self.store.checkpoints.thaw()
            self._frozen = None
            self._send(self.core.saved(outcome.version, outcome.files, outcome.problem))
        if hashes := self._hasher.poll():
            self._send(self.core.contents.hashed(*hashes))
        self._follow_saving()
        self._links.tick(now)
        self._send(self.core.tick(now))

    def _repeat_failure(self, now: float) -> None:
        if now >= self._next_report:
            self._next_report = now + self.core.heartbeat_s
            assert self._failure is not None
            self._send([Send(COORDINATOR, self._failure)])

    def close(self) -> None:
        """End the background threads."""
        self._writer.close()
        self._hasher.close()
        self._threads.close()

    def _introduce(self) -> None:
        self._send([Send(COORDINATOR, self.core.introduce(self.introduction))])

    def _follow_saving(self) -> None:
        """Begin to write a version that the core has frozen; give up a version that the core no longer needs."""
        checkpoints, saving = self.store.checkpoints, self.core.saving
        if checkpoints.frozen is not None and saving.version != checkpoints.frozen.version:
            checkpoints.thaw()
        if checkpoints.frozen is not self._frozen:
            self._writer.give_up()
            self._frozen = checkpoints.frozen
            if self._frozen is not None:
                folder = folder_name(self.core.assignment.incarnation, self._frozen.version, self._term)
                self._writer.begin(folder, self._frozen)

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            to = self.coordinator if send.to == COORDINATOR else send.to
            if to is None:
                continue  # without a coordinator; the core repeats the message with the next beat
            if send.payload:
                self._reply(to, send.message, send.payload)
                continue
            try:
                self.port.send(to, send.message, later=send.later)
            except (PeerUnknownError, PeerLostError):
                self._miss(to)

    def _miss(self, peer: NodeId) -> None:
        """Note that there is no session with `peer`. The core repeats messages when there is one."""
        self.core.forget(peer)
        self._links.lost(peer, self._now)

    def _reply(self, to: NodeId, message: Message, frames: Sequence[Any]) -> None:
        """Send blocks (as `LentFrame`). Their memory is not written until the receiver has read them."""
        with tracing.span("reply", to=to, blocks=len(frames)):
            try:
                delivery = self.port.send(to, message, [lent.frame for lent in frames])
            except (PeerUnknownError, PeerLostError):
                self._miss(to)
                return
            for buffer in {id(lent.buffer): lent.buffer for lent in frames}.values():
                buffer.lend(delivery)
