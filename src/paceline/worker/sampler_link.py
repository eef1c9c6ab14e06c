"""The samplers of the job as one worker sees them: carries out what `Asking` decides, on the port of the session."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.core.sampler.asking import Asking
from paceline.data.batch_source import SlotKey
from paceline.errors import TransportError
from paceline.messages import AskSlot, Refused, Samplers, SlotPrepared
from paceline.transport.base import Event, PeerDown, PeerUp, Port, Received
from paceline.types import NodeId, SlotId

Answer = Received | Refused
"""A prepared slot with its frames, or why the sampler that was asked does not give it."""


@dataclass(slots=True)
class _Question:
    """The question for one slot. `reqs` are its requests so far: the last one is that of the sampler asked now."""

    data: str
    key: SlotKey
    reqs: list[int] = field(default_factory=list)
    node: NodeId | None = None
    answer: Answer | None = None

    @property
    def slot(self) -> SlotId:
        """The slot that is asked for."""
        return SlotId(self.key.step, self.key.slot)


class SamplerLink:
    """Asks samplers for the slot that is leased, and for the one that will probably be leased next.

    Owns no thread: the session passes every event to `handle`.
    """

    def __init__(self, port: Port, next_req: Callable[[], int]) -> None:
        self._port = port
        self._next_req = next_req
        self._asking = Asking()
        self._generation = 0
        self._now: _Question | None = None
        self._ahead: _Question | None = None

    @property
    def has_samplers(self) -> bool:
        """Whether a sampler can be asked."""
        return self._asking.has_samplers

    @property
    def asks(self) -> bool:
        """Whether a sampler was asked for the leased slot and has not answered."""
        return self._now is not None and self._asking.node is not None and self._now.answer is None

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
                self._lost(peer, now)
            case Received(message=SlotPrepared(req=req)):
                for question in (self._now, self._ahead):
                    if question is not None and req in question.reqs:
                        question.answer = event
            case Received(message=Refused(req=req) as refused):
                self._refused(req, refused)
        return True

    def _lost(self, peer: NodeId, now: float) -> None:
        if self._ahead is not None and self._ahead.node == peer and self._ahead.answer is None:
            self._ahead = None
        was_asked = self._asking.node == peer
        node = self._asking.down(peer, now)
        if was_asked and self._now is not None and self._now.answer is None:
            self._send(self._now, node)

    def _refused(self, req: int, refused: Refused) -> None:
        if self._ahead is not None and req in self._ahead.reqs:
            self._ahead = None
        elif self._now is not None and self.asks and req == self._now.reqs[-1]:
            self._now.answer = refused

    # ------------------------------------------------------------ questions

    def ask(self, data: str, key: SlotKey) -> bool:
        """Ask for the slot of `key`, which is leased; False if there is no sampler to ask."""
        ahead, self._ahead = self._ahead, None
        now = time.monotonic()
        if ahead is not None and (ahead.data, ahead.key) == (data, key):
            self._now = ahead
            node = self._asking.begin(key.segment, ahead.slot, now)
            if ahead.answer is not None or node == ahead.node:
                return True
        else:
            self._now = _Question(data, key)
            node = self._asking.begin(key.segment, self._now.slot, now)
        return self._send(self._now, node)

    def ask_ahead(self, data: str, key: SlotKey) -> None:
        """Ask for a slot that will probably be leased next, so that its batch arrives while this one is computed."""
        question = _Question(data, key)
        node = self._asking.first(key.segment, question.slot, time.monotonic())
        if node is not None and self._post(question, node):
            self._ahead = question

    def ask_next(self, *, late: bool = False) -> bool:
        """Ask the next sampler: the one before has refused, or with `late` did not answer in time."""
        now = time.monotonic()
        node = self._asking.late(now) if late else self._asking.next(now)
        if self._now is None:
            return False
        self._now.answer = None
        return self._send(self._now, node)

    def drop(self) -> None:
        """Forget the questions: the loop is over."""
        self._now = self._ahead = None

    def wait_s(self) -> float:
        """How long to wait for the sampler that is asked now."""
        return self._asking.wait_s(time.monotonic())

    def take(self) -> Answer | None:
        """The answer for the leased slot, if it has come."""
        question = self._now
        if question is None or question.answer is None:
            return None
        answer, question.answer = question.answer, None
        if isinstance(answer, Received) and isinstance(answer.message, SlotPrepared):
            self._asking.answered(answer.message.seconds)
            self._now = None
        return answer

    def _send(self, question: _Question, node: NodeId | None) -> bool:
        while node is not None:
            if self._post(question, node):
                return True
            node = self._asking.next(time.monotonic())
        return False

    def _post(self, question: _Question, node: NodeId) -> bool:
        req, key = self._next_req(), question.key
        with contextlib.suppress(TransportError):
            self._port.send(node, AskSlot(req, question.data, key.segment, key.step, key.slot))
            question.reqs.append(req)
            question.node = node
            return True
        return False
