"""Pulls and pushes that a server has not answered yet. They are repeated: after a time, and when a session begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from paceline.core.effects import Send
from paceline.core.message_parts import Arrivals
from paceline.core.worker.requests import Request
from paceline.messages import Message, Pull, PullReply, Push
from paceline.types import NodeId


class ServerRequests:
    """The open requests (without an answer yet) to servers: one pull per server, and pushes by request number.

    Only its methods change them. A request stays until it is answered or has become useless.
    """

    def __init__(self, resend_s: float) -> None:
        self._resend_s = resend_s
        self._pulls: dict[NodeId, Request[Pull]] = {}
        self._arrivals = Arrivals()
        self._pushes: dict[int, Request[Push]] = {}

    # ------------------------------------------------------------ pulls

    def pull(self, server: NodeId, pull: Pull, now: float) -> Send:
        """Send `pull` to a server."""
        self._pulls[server] = Request(server, pull, (), now)
        return Send(server, pull)

    @property
    def is_reading(self) -> bool:
        """Whether a pull is open."""
        return bool(self._pulls)

    def is_pull(self, req: int) -> bool:
        """Whether `req` is the number of an open pull."""
        return any(asked.message.req == req for asked in self._pulls.values())

    def waits_for_step(self, step: int | None = None) -> bool:
        """Whether a pull waits for `step`, which this worker has sealed; without `step`, for any such step."""
        steps = (asked.message.after for asked in self._pulls.values())
        return any(after >= 0 if step is None else after == step for after in steps)

    def receive(self, sender: NodeId, reply: PullReply, now: float) -> bool | None:
        """Note a reply: True if it completes the pull, False if parts are missing, None if it must be ignored."""
        asked = self._pulls.get(sender)
        if asked is None or asked.message.req != reply.req or self._arrivals.is_outdated(sender, reply):
            return None
        if not self._arrivals.complete(sender, reply):
            asked.prolong(now)
            return False
        del self._pulls[sender]
        return True

    def forget_pulls(self) -> None:
        """Drop all pulls, and the parts of answers that have arrived."""
        self._pulls.clear()
        self._arrivals.clear()

    # ------------------------------------------------------------ pushes

    @property
    def unacked(self) -> Collection[int]:
        """The numbers of pushes that are not answered; their payloads must not change."""
        return self._pushes.keys()

    def push(self, server: NodeId, push: Push, payload: Sequence[object], now: float) -> Send:
        """Send `push` with its payload to a server."""
        self._pushes[push.req] = Request(server, push, payload, now)
        return Send(server, push, payload)

    def end_push(self, req: int) -> Push | None:
        """Note that a server has accepted or refused push `req`, and return that push; None if it is not open."""
        asked = self._pushes.pop(req, None)
        return None if asked is None else asked.message

    def is_push(self, req: int) -> bool:
        """Whether `req` is the number of an open push."""
        return req in self._pushes

    def retry_push(self, req: int, now: float, wait_s: float) -> None:
        """Make push `req` due for repetition after `wait_s` seconds."""
        self._pushes[req].restart(now - self._resend_s + wait_s)

    def forget_pushes_except(self, servers: Mapping[NodeId, object]) -> None:
        """Drop the pushes to all other servers than `servers`: they will not be answered."""
        for req in [req for req, asked in self._pushes.items() if asked.to not in servers]:
            del self._pushes[req]

    def forget_pushes(self) -> None:
        """Drop all pushes: their incarnation has ended."""
        self._pushes.clear()

    # ------------------------------------------------------------ again

    def repeat(self, now: float) -> list[Send]:
        """Repeat the requests that have waited long enough for an answer."""
        under_way = chain[Request[Message]](self._pulls.values(), self._pushes.values())
        return [asked.again(now) for asked in under_way if asked.is_due(now, self._resend_s)]

    def greet(self, server: NodeId, now: float) -> list[Send]:
        """Repeat every request that `server` has not answered: a session with it is up (again)."""
        asked = self._pulls.get(server)
        out = [] if asked is None else [asked.again(now, anew=True)]
        return out + [push.again(now, anew=True) for push in self._pushes.values() if push.to == server]
