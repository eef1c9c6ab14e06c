"""The samplers of the job as one worker sees them: carries out what `Asking` decides, on the port of the session."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from paceline.core.sampler.asking import Asking
from paceline.data.batch_source import SlotKey
from paceline.errors import TransportError
from paceline.messages import AskSlot, Refused, Samplers, SlotPrepared
from paceline.transport.base import Event, PeerDown, PeerUp, Port, Received
from paceline.types import NodeId, SlotId

Answer = Received | Refused
"""A prepared slot with its frames, or why the sampler that was asked does not give it."""


class SamplerLink:
    """Asks samplers for one slot at a time. Owns no thread: the session passes every event to `handle`."""

    def __init__(self, port: Port, next_req: Callable[[], int]) -> None:
        self._port = port
        self._next_req = next_req
        self._asking = Asking()
        self._generation = 0
        self._question: tuple[str, SlotKey] | None = None
        self._reqs: list[int] = []  # the last one is that of the sampler that is asked now
        self._answer: Answer | None = None

    @property
    def has_samplers(self) -> bool:
        """Whether a sampler can be asked."""
        return self._asking.has_samplers

    @property
    def asks(self) -> bool:
        """Whether a sampler was asked and has not answered."""
        return self._asking.node is not None and self._answer is None

    # ------------------------------------------------------------ events

    def roster(self, message: Samplers) -> None:
        """Note which samplers there are, as the coordinator says."""
        if message.generation < self._generation:
            return
        self._generation = message.generation
        new, gone = self._asking.roster(dict(message.samplers))
        for address in gone:
            self._port.disconnect(address)
        for address in new:
            with contextlib.suppress(ValueError, TransportError):
                self._port.connect(address)
        if self._asking.node is not None and not self._asking.is_sampler(self._asking.node):
            self.ask_next()

    def handle(self, event: Event, now: float) -> bool:
        """Take an event of the port; False if it is not about a sampler."""
        peer = event.peer
        if not self._asking.is_sampler(peer):
            return False
        match event:
            case PeerUp():
                self._asking.up(peer)
            case PeerDown():
                was_asked = self._asking.node == peer
                node = self._asking.down(peer, now)
                if was_asked and self._answer is None:
                    self._send(node)
            case Received(message=SlotPrepared(req=req)) if req in self._reqs:
                self._answer = event
            case Received(message=Refused(req=req) as refused) if req in self._reqs:
                if req == self._reqs[-1] and self.asks:
                    self._answer = refused
        return True

    # ------------------------------------------------------------ one question

    def ask(self, data: str, key: SlotKey) -> bool:
        """Ask for the slot of `key`; False if there is no sampler to ask."""
        self._question, self._answer = (data, key), None
        self._reqs.clear()
        return self._send(self._asking.begin(key.segment, SlotId(key.step, key.slot), time.monotonic()))

    def ask_next(self, *, late: bool = False) -> bool:
        """Ask the next sampler: the one before has refused, or with `late` did not answer in time."""
        self._answer = None
        now = time.monotonic()
        return self._send(self._asking.late(now) if late else self._asking.next(now))

    def wait_s(self) -> float:
        """How long to wait for the sampler that is asked now."""
        return self._asking.wait_s(time.monotonic())

    def take(self) -> Answer | None:
        """The answer, if it has come."""
        answer, self._answer = self._answer, None
        if isinstance(answer, Received) and isinstance(answer.message, SlotPrepared):
            self._asking.answered(answer.message.seconds)
            self._reqs.clear()
        return answer

    def _send(self, node: NodeId | None) -> bool:
        while node is not None and self._question is not None:
            data, key = self._question
            req = self._next_req()
            try:
                self._port.send(node, AskSlot(req, data, key.segment, key.step, key.slot))
            except TransportError:
                node = self._asking.next(time.monotonic())
                continue
            self._reqs.append(req)
            return True
        return False
