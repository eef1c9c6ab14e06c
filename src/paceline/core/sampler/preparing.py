"""A sampler: which slots it prepares in which order, what it keeps, and what it answers.

The shell prepares a slot (`next_slot`, `prepared`) and carries out the answers. Nothing here is durable: a sampler that
starts again learns from the first question where the job is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from paceline.core.sampler.choice import is_own, own_slots
from paceline.core.sampler.demand import LEAST, Demand
from paceline.messages import AskSlot, SamplerWork
from paceline.types import NodeId, Segment, SlotId

_KEPT_STEPS = 1  # an answered slot is kept until the leases are this many steps further: its worker may die
_BEHIND_STEPS = 2  # questions this far behind the leases, two in a row, show that the job was rewound


@dataclass(frozen=True, slots=True)
class Question:
    """Worker `peer` waits for the answer to its request number `req`."""

    peer: NodeId
    req: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer `question` with the batch of `slot`, which is held."""

    question: Question
    slot: SlotId


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse `question`: `rule` is what the worker acts by."""

    question: Question
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Free the batch of `slot`: it is not held any more."""

    slot: SlotId


Effect = Answer | Refuse | Drop


@dataclass(slots=True)
class _Held:
    nbytes: int
    served: bool


class SamplerCore:
    """The decisions of the sampler called `name` for one phase, whose data have the key `data`.

    It holds at most `limit_nbytes` of batches, but always the one that a worker waits for. `least` is how many slots it
    keeps ahead at any time.
    """

    def __init__(self, name: str, data: str, limit_nbytes: int, *, least: int = LEAST) -> None:
        self._name = name
        self._data = data
        self._limit = limit_nbytes
        self._samplers: tuple[str, ...] = (name,)
        self._segment: Segment | None = None
        self._front: SlotId | None = None
        self._behind = 0
        self._demand = Demand(least)
        self._prepared = self._served = self._late = self._nbytes = 0
        self._held: dict[SlotId, _Held] = {}
        self._unfit: dict[SlotId, tuple[str, str]] = {}
        self._running: set[SlotId] = set()
        self._asked: OrderedDict[SlotId, list[Question]] = OrderedDict()
        self._mine: Iterator[SlotId] = iter(())
        self._upcoming: deque[SlotId] = deque()

    @property
    def work(self) -> SamplerWork:
        """What this sampler has done, and what it holds."""
        return SamplerWork(self._prepared, self._served, self._late, self._demand.ahead, self._nbytes)

    @property
    def is_awaited(self) -> bool:
        """Whether a worker waits for an answer."""
        return bool(self._asked)

    # ------------------------------------------------------------ events

    def roster(self, samplers: tuple[str, ...]) -> None:
        """Note which samplers there are, by name: they share the slots."""
        samplers = tuple(sorted({*samplers, self._name}))
        if samplers != self._samplers:
            self._samplers = samplers
            self._look_ahead()

    def ask(self, peer: NodeId, message: AskSlot) -> list[Effect]:
        """A worker asks for a slot. It is answered at once, or when the slot is prepared."""
        question = Question(peer, message.req)
        if message.data != self._data:
            return [Refuse(question, "data", f"{self._name} prepares other data")]
        effects: list[Effect] = []
        if message.segment != self._segment:
            if self._segment is not None and message.segment.revision < self._segment.revision:
                return [Refuse(question, "revision", f"{self._name} has a newer plan")]
            effects = self._replan(message.segment)
        slot = SlotId(message.step, message.slot)
        held, unfit = self._held.get(slot), self._unfit.get(slot)
        self._move_front(slot)
        if unfit is not None:
            return [*effects, Refuse(question, *unfit), *self._drop_old()]
        if is_own(self._name, self._samplers, message.segment, slot):  # slots of others say nothing about the own ones
            is_full = held is not None and self._next_ahead() is None
            self._demand.asked(ready=held is not None, ahead_is_full=is_full)
        if held is not None:
            held.served = True
            self._served += 1
            return [*effects, Answer(question, slot), *self._drop_old()]
        self._late += 1
        self._asked.setdefault(slot, []).append(question)
        return [*effects, *self._drop_old()]

    def forget(self, peer: NodeId) -> None:
        """The session with `peer` has ended: it waits for nothing here any more."""
        for slot, questions in list(self._asked.items()):
            self._asked[slot] = [question for question in questions if question.peer != peer]
            if not self._asked[slot]:
                del self._asked[slot]

    def next_slot(self) -> tuple[Segment, SlotId] | None:
        """The slot to prepare next, with its segment; None if there is nothing to do now.

        A slot that a worker waits for goes first.
        """
        if self._segment is None:
            return None
        slot = next((slot for slot in self._asked if slot not in self._running), None) or self._next_ahead()
        if slot is None:
            return None
        self._running.add(slot)
        return self._segment, slot

    def expects(self, segment: Segment, slot: SlotId) -> bool:
        """Whether the batch of `slot` by `segment` is being prepared, and still of use."""
        return segment == self._segment and slot in self._running

    def prepared(self, segment: Segment, slot: SlotId, nbytes: int) -> list[Effect]:
        """The batch of `slot` by `segment` is prepared, and the shell holds it. Call it only if that is expected."""
        if not self._ends(segment, slot):
            return []
        questions = self._asked.pop(slot, [])
        self._held[slot] = _Held(nbytes, served=bool(questions))
        self._nbytes += nbytes
        self._prepared += 1
        self._served += len(questions)
        return [*(Answer(question, slot) for question in questions), *self._drop_old()]

    def failed(self, segment: Segment, slot: SlotId, rule: str, detail: str) -> list[Effect]:
        """The batch of `slot` cannot be handed over, or its preparation raised: the worker prepares it itself."""
        if not self._ends(segment, slot):
            return []
        self._unfit[slot] = rule, detail
        return [Refuse(question, rule, detail) for question in self._asked.pop(slot, [])]

    # ------------------------------------------------------------ inside

    def _ends(self, segment: Segment, slot: SlotId) -> bool:
        """Note that the preparation of `slot` has ended; False if the plan has changed meanwhile."""
        if not self.expects(segment, slot):
            return False
        self._running.discard(slot)
        return True

    def _replan(self, segment: Segment) -> list[Effect]:
        """Take another plan: what was prepared by the one before is void (rule 19)."""
        effects = self.end()
        self._segment = segment
        return effects

    def end(self) -> list[Effect]:
        """Drop everything: the plan has changed, or the loop is over."""
        effects: list[Effect] = [Drop(slot) for slot in self._held]
        for questions in self._asked.values():
            effects += [
                Refuse(question, "revision", "the plan has changed, or the loop is over") for question in questions
            ]
        self._segment, self._front, self._behind, self._nbytes = None, None, 0, 0
        self._held.clear()
        self._asked.clear()
        self._running.clear()
        self._unfit.clear()
        return effects

    def _move_front(self, slot: SlotId) -> None:
        """Note that `slot` is leased. The front is the last one leased; a rewind moves it back."""
        front = self._front
        self._behind = self._behind + 1 if front is not None and slot.step < front.step - _BEHIND_STEPS else 0
        if front is None or self._behind > 1:
            self._front, self._behind = slot, 0
            self._look_ahead()
        elif slot > front:
            self._front = slot
            while self._upcoming and self._upcoming[0] <= slot:
                self._upcoming.popleft()

    def _look_ahead(self) -> None:
        """Begin anew to list the slots of this sampler behind the front."""
        self._upcoming.clear()
        if self._segment is not None and self._front is not None:
            self._mine = own_slots(self._name, self._samplers, self._segment, self._front)

    def _next_ahead(self) -> SlotId | None:
        """The next slot to prepare before a worker asks for it; None if enough are ahead, or memory is short."""
        front = self._front
        if front is None:
            return None
        while len(self._upcoming) < self._demand.ahead and (slot := next(self._mine, None)) is not None:
            if slot > front:
                self._upcoming.append(slot)
        for slot in islice(self._upcoming, self._demand.ahead):
            if slot not in self._held and slot not in self._running and slot not in self._unfit:
                return slot if self._has_room() else None
        return None

    def _has_room(self) -> bool:
        """Whether one batch more fits into the memory, after all answered ones are dropped."""
        waiting = [held.nbytes for held in self._held.values() if not held.served]
        largest = max((held.nbytes for held in self._held.values()), default=0)
        if not waiting and not self._running:
            return True
        return sum(waiting) + largest * (len(self._running) + 1) <= self._limit

    def _drop_old(self) -> list[Effect]:
        """Drop what is of no use any more: slots behind the leases, and answered ones if memory is short."""
        if self._front is None:
            return []
        lowest = self._front.step - _KEPT_STEPS
        old = [slot for slot in self._held if slot.step < lowest]
        nbytes = self._nbytes - sum(self._held[slot].nbytes for slot in old)
        for slot, held in self._held.items():
            if nbytes <= self._limit:
                break
            if held.served and slot.step >= lowest:
                old.append(slot)
                nbytes -= held.nbytes
        for slot in old:
            self._nbytes -= self._held.pop(slot).nbytes
        self._unfit = {slot: why for slot, why in self._unfit.items() if slot.step >= lowest}
        return [Drop(slot) for slot in old]
