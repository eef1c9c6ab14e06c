"""Where the two threads of a sampler meet: one prepares batches, the other talks to workers and the coordinator."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from paceline.core.sampler.preparing import Effect, Question, Refuse, SamplerCore
from paceline.messages import AskSlot, SamplerNews, SamplerWork
from paceline.types import NodeId, Segment, SlotId


@dataclass(frozen=True, slots=True)
class Made:
    """The batch of `slot`, which took `seconds` to prepare; or the `error` that the data set raised."""

    segment: Segment
    slot: SlotId
    content: Any = None
    seconds: float = 0.0
    error: str = ""


class Desk:
    """The core of the loop in which the script is, what it has prepared, and the newest news of the job.

    `wake` is called when the thread of the port has something to do.
    """

    def __init__(self, name: str, wake: Callable[[], None] = lambda: None) -> None:
        self.phase = -1
        self.evaluation = -1
        self._name = name
        self._wake = wake
        self._core: SamplerCore | None = None
        self._made: deque[Made] = deque()
        self._news: SamplerNews | None = None
        self._error: Exception | None = None
        self._work = SamplerWork()
        self._last: list[Effect] = []
        self._samplers: tuple[str, ...] = (name,)
        self._changed = threading.Condition()

    # ------------------------------------------------------------ the script's thread

    def open(self, phase: int, core: SamplerCore) -> None:
        """Begin loop number `phase`."""
        with self._changed:
            self.phase, self._core = phase, core
            core.roster(self._samplers)
        self._wake()

    def close(self) -> None:
        """End the loop: questions are refused until the next one begins."""
        with self._changed:
            if self._core is not None:
                self._work = _sum(self._work, self._core.work)
                self._last += self._core.end()
            self._core = None
            self._made.clear()
        self._wake()

    def next_slot(self) -> tuple[Segment, SlotId] | None:
        """The slot to prepare next; None if there is nothing to do now."""
        with self._changed:
            return None if self._core is None else self._core.next_slot()

    def put(self, made: Made) -> None:
        """Hand over what was prepared."""
        with self._changed:
            self._made.append(made)
        self._wake()

    def wait(self, timeout_s: float) -> None:
        """Wait until there may be something new, for up to `timeout_s`."""
        with self._changed:
            self._changed.wait(timeout_s)

    def ask(self, evaluation: int) -> None:
        """Ask for the result of validation number `evaluation` from now on; -1 for none."""
        with self._changed:
            self.evaluation = evaluation
            if self._news is not None:
                self._news = replace(self._news, result=None)
        self._wake()

    @property
    def news(self) -> SamplerNews | None:
        """The newest news of the job; None before the first.

        Raises:
            Exception: the thread of the port has ended with it.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._news

    # ------------------------------------------------------------ the port's thread

    def ended(self) -> list[Effect]:
        """What follows from the end of a loop."""
        with self._changed:
            last, self._last = self._last, []
            return last

    def expects(self, made: Made) -> bool:
        """Whether the batch `made` is still of use."""
        with self._changed:
            return self._core is not None and self._core.expects(made.segment, made.slot)

    def take(self) -> Made | None:
        """The next batch that was prepared."""
        with self._changed:
            return self._made.popleft() if self._made else None

    def question(self, peer: NodeId, message: AskSlot) -> list[Effect]:
        """A worker asks for a slot."""
        with self._changed:
            if self._core is None or message.segment.phase != self.phase:
                why = f"the script of {self._name} is not in that loop"
                return [Refuse(Question(peer, message.req), "phase", why)]
            self._changed.notify_all()
            return self._core.ask(peer, message)

    def prepared(self, made: Made, nbytes: int) -> list[Effect]:
        """The batch `made` is ready to be sent."""
        with self._changed:
            self._changed.notify_all()  # there may be room for another one
            return [] if self._core is None else self._core.prepared(made.segment, made.slot, nbytes)

    def failed(self, made: Made, rule: str, detail: str) -> list[Effect]:
        """The batch `made` cannot be sent."""
        with self._changed:
            self._changed.notify_all()
            return [] if self._core is None else self._core.failed(made.segment, made.slot, rule, detail)

    def forget(self, peer: NodeId) -> None:
        """The session with `peer` has ended."""
        with self._changed:
            if self._core is not None:
                self._core.forget(peer)

    def tell(self, news: SamplerNews, samplers: tuple[str, ...]) -> None:
        """Note news of the job, and the names of all samplers."""
        with self._changed:
            self._news, self._samplers = news, samplers
            if self._core is not None:
                self._core.roster(samplers)
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End the waits of the script's thread with `error`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    @property
    def work(self) -> SamplerWork:
        """What this process has done in all its loops, and what it holds."""
        with self._changed:
            return self._work if self._core is None else _sum(self._work, self._core.work)


def _sum(before: SamplerWork, now: SamplerWork) -> SamplerWork:
    prepared, served, late = before.prepared + now.prepared, before.served + now.served, before.late + now.late
    return SamplerWork(prepared, served, late, now.ahead, now.nbytes)
