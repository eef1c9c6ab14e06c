"""A member of a group: a server in a worker's process, which sums with the other members by a collective. Rule 18.

In a group on one host nothing is reduced: its core adds the slots, which all workers push to it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import cast

from paceline.blocks.group_parts import GroupPart
from paceline.clients.redial import Redial
from paceline.core.server.contributions import Contribution
from paceline.errors import PacelineError
from paceline.messages import Meet, Met
from paceline.reducers.gloo import GlooGroup
from paceline.server.service import ServerService
from paceline.telemetry import tracing
from paceline.transport.base import Event, Port, Received

logger = logging.getLogger(__name__)

_IDLE_S = 0.1  # the longest wait for an event
_FORMING_S = 0.005  # the same, while the group connects
_REDUCING_S = 0.01  # how long one look at a reduction takes at most; then the member listens again
_MEET_S = 1.0  # between two repetitions of what this member has published
_DOUBT_S = 1.0  # a member that waits for longer asks the others whether they are there, as often as this
_END_S = 1.0  # a member that ends waits this long for the threads of its group
_BURST = 256  # the most events that are handled between two looks at the clock


class Member:
    """Serves the events of one port, and reduces with the group of its placement. Runs in one thread of its own."""

    def __init__(self, service: ServerService, port: Port, redial: Redial, address: str) -> None:
        """Gloo listens at `address`. The service ends when the coordinator lets this member go."""
        self._service = service
        self._port = port
        self._redial = redial
        self._address = address
        self._group: GlooGroup | None = None
        self._at = (0, 0)
        self._reducing: Contribution | None = None
        self._published: dict[str, bytes] = {}
        self._outbox: queue.SimpleQueue[tuple[tuple[int, int], str, bytes]] = queue.SimpleQueue()
        self._next_tick = self._next_meet = 0.0
        self._doubt_at: float | None = None

    def run(self, stopped: threading.Event) -> None:
        """Serve until the service has ended or `stopped` is set."""
        try:
            while self._service.ended is None and not stopped.is_set():
                self._step()
        finally:
            if self._group is not None:
                self._group.close(_END_S)
            self._service.close()

    def _step(self) -> None:
        service, port = self._service, self._port
        wait_s = _IDLE_S
        if self._reducing is not None:
            wait_s = 0.0
        elif self._group is not None and self._group.is_forming:
            wait_s = _FORMING_S
        event, burst = port.recv(wait_s), 0
        while event is not None:
            self._redial.note(event)
            self._handle(event, time.monotonic())
            burst += 1
            event = port.recv(0) if burst <= _BURST else None
        self._reduce()
        now = time.monotonic()
        self._doubt(now)
        self._publish(now)
        if now >= self._next_tick:
            self._next_tick = now + _IDLE_S
            service.on_tick(now)
            self._redial.tick(now)

    def _handle(self, event: Event, now: float) -> None:
        match event:
            case Received(message=Met() as met):
                if self._group is not None and (met.incarnation, met.epoch) == self._at:
                    self._group.put(met.key, met.value)
                return
        self._service.on_event(event, now)
        assignment = self._service.core.assignment
        if assignment.at != self._at:
            self._form()
        if self._reducing is None:
            self._begin()

    # ------------------------------------------------------------ groups

    def _form(self) -> None:
        """Leave the group of the last epoch, and connect to that of the new one."""
        assignment = self._service.core.assignment
        if self._group is not None:
            self._group.leave()
        self._group, self._reducing, self._at = None, None, assignment.at
        self._doubt_at = None
        self._published.clear()
        group = assignment.group
        if group and assignment.entered and not assignment.near:
            at, rank = assignment.at, group.index(assignment.node)
            publish = self._outbox.put
            self._group = GlooGroup(rank, len(group), self._address, lambda key, value: publish((at, key, value)))

    def _publish(self, now: float) -> None:
        """Send what Gloo has put into its store to the other members; repeat it until the group is connected."""
        new: dict[str, bytes] = {}
        while not self._outbox.empty():
            at, key, value = self._outbox.get()
            if at == self._at:
                new[key] = value
        self._published |= new
        if self._group is not None and self._group.is_forming and now >= self._next_meet:
            new = self._published
        if new:
            self._next_meet = now + _MEET_S
            self._service.tell([Meet(*self._at, key, value) for key, value in new.items()])

    def _doubt(self, now: float) -> None:
        """Ask the other members for a sign of life while the group connects, or reduces, for longer than usual."""
        waits = self._group is not None and (self._group.is_forming or self._reducing is not None)
        if not waits:
            if self._doubt_at is not None:
                self._doubt_at = None
                self._service.trust_group()
        elif self._doubt_at is None:
            self._doubt_at = now + _DOUBT_S
        elif now >= self._doubt_at:
            self._doubt_at = now + _DOUBT_S
            self._service.doubt_group(now)

    # ------------------------------------------------------------ reductions

    def _begin(self) -> None:
        """Begin to reduce the next step, if this member has all that it adds."""
        if self._group is None:
            return
        taken = self._service.core.contributions.take()
        if taken is not None:
            self._reducing = taken
            self._group.begin(cast(GroupPart, taken.part), taken.ranks)

    def _reduce(self) -> None:
        """Look whether the group has reduced the step, and tell the core."""
        group, taken = self._group, self._reducing
        if group is None:
            return
        if taken is None:
            if group.problem:
                self._service.carry_out(lambda now: self._service.core.contributions.broke(self._at, group.problem))
            return
        with tracing.span("reduce", step=taken.step):
            if not group.poll(_REDUCING_S):
                return
        self._reducing, self._doubt_at = None, None
        self._service.trust_group()
        contributions = self._service.core.contributions
        if group.problem:
            self._service.carry_out(lambda now: contributions.broke(taken.at, group.problem))
        else:
            self._service.carry_out(lambda now: contributions.reduced(taken, now))
            self._begin()


class MemberThread:
    """Runs a member in a thread. An error in it ends the process, by `fail`: a worker is of no use without it."""

    def __init__(self, make: Callable[[], tuple[Member, Callable[[], None]]], fail: Callable[[str], None]) -> None:
        """`make` is called in the thread; it returns the member, and what closes its port."""
        self._make = make
        self._fail = fail
        self._stop = threading.Event()
        self._made = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-member", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the member listens."""
        self._thread.start()
        self._made.wait()

    def _run(self) -> None:
        try:
            member, close = self._make()
        except BaseException as error:
            self._made.set()
            self._fail(f"{type(error).__name__}: {error}")
            return
        self._made.set()
        try:
            member.run(self._stop)
        except PacelineError as error:
            self._fail(str(error))
        except BaseException as error:
            logger.exception("the member of this worker failed")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the coordinator lets the member go; False if it does not in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End the member now."""
        self._stop.set()
        self._thread.join(5.0)
