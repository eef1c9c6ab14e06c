"""Virtual time: a heap of events, the processes that they belong to, and a trace of every event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from struct import Struct

import msgspec

from paceline.messages import Message

_STAMP = Struct("<d")


class Violation(AssertionError):
    """A rule was broken. `lines` are the last events."""

    def __init__(self, what: str, *, seed: int = 0, event: int = 0, lines: tuple[str, ...] = ()) -> None:
        self.what, self.seed, self.event, self.lines = what, seed, event, lines
        tail = "".join(f"\n  {line}" for line in lines)
        super().__init__(f"seed {seed}, event {event}: {what}{tail}")

    def __reduce__(self) -> tuple[object, ...]:
        """Make the exception picklable."""
        return (_rebuild, (self.what, self.seed, self.event, self.lines))


def _rebuild(what: str, seed: int, event: int, lines: tuple[str, ...]) -> Violation:
    return Violation(what, seed=seed, event=event, lines=lines)


class Trace:
    """Keeps the last events, and with `hashed` a running hash of all events."""

    def __init__(self, keep: int = 40, *, hashed: bool = True) -> None:
        self._hash = blake2b(digest_size=16) if hashed else None
        self._last: deque[tuple[float, str, str, str, Message | None]] = deque(maxlen=keep)
        self._encode = msgspec.msgpack.Encoder().encode

    def note(self, now: float, what: str, who: str, peer: str, message: Message | None) -> None:
        """Add one event."""
        self._last.append((now, what, who, peer, message))
        if self._hash is not None:
            body = b"" if message is None else self._encode(message)
            self._hash.update(_STAMP.pack(now) + f"{what} {who} {peer} ".encode() + body)

    @property
    def digest(self) -> str:
        """A hash of all events with their order and times, equal only for equal runs; "" if `hashed` is False."""
        return "" if self._hash is None else self._hash.hexdigest()

    def lines(self) -> tuple[str, ...]:
        """The last events, oldest first."""
        return tuple(
            f"{now:10.4f} {what:<8} {who:<14} {peer:<14} {'' if message is None else message}"
            for now, what, who, peer, message in self._last
        )


class Process:
    """The owner of events. While a process is stopped, its events wait; once it is dead, they are dropped.

    `threads` are parts of the process with events of their own.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.alive = True
        self.stopped = False
        self.backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.threads: list[Process] = []

    def die(self) -> None:
        """End the process with its threads: its events do not happen any more."""
        self.alive = False
        self.end_threads()

    def end_threads(self) -> None:
        """End the threads of the process."""
        for thread in self.threads:
            thread.die()

    def stop(self) -> None:
        """Stop the process with its threads: its events wait until `World.wake`."""
        self.stopped = True
        for thread in self.threads:
            thread.stop()


class Node(Process, ABC):
    """A process that receives messages."""

    @abstractmethod
    def receive(self, sender: str, message: Message, payload: tuple[object, ...]) -> None:
        """Handle one message."""


class World:
    """The virtual clock. Events at the same time happen in the order in which they were scheduled."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.now = 0.0
        self.events = 0
        self.trace = trace
        self._order = 0
        self._heap: list[tuple[float, int, Process, Callable[..., None], tuple[object, ...]]] = []

    def after(self, delay: float, process: Process, call: Callable[..., None], *args: object) -> None:
        """Schedule `call(*args)` as an event of `process`, `delay` seconds from now."""
        self._order += 1
        heappush(self._heap, (self.now + delay, self._order, process, call, args))

    def note(self, what: str, who: str, peer: str = "", message: Message | None = None) -> None:
        """Add an event to the trace, if there is one."""
        if self.trace is not None:
            self.trace.note(self.now, what, who, peer, message)

    def run(self, events: int = 1) -> bool:
        """Play the next events; False if none is left."""
        heap = self._heap
        while events:
            if not heap:
                return False
            self.now, _, process, call, args = heappop(heap)
            if not process.alive:
                continue
            if process.stopped:
                process.backlog.append((call, args))
                continue
            events -= 1
            self.events += 1
            call(*args)
        return True

    def wake(self, process: Process) -> None:
        """Continue a stopped process: the events that waited happen now, in order; then those of its threads."""
        process.stopped = False
        backlog, process.backlog = process.backlog, []
        for call, args in backlog:
            if process.stopped or not process.alive:
                process.backlog.append((call, args))
                continue
            self.events += 1
            call(*args)
        for thread in process.threads:
            self.wake(thread)
