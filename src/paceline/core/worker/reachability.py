"""Reports of servers that a worker cannot reach. The coordinator decides what follows."""

from __future__ import annotations

from collections.abc import Collection

from paceline.core.running_time import RunningTime
from paceline.messages import Message, Reachable, Unreachable
from paceline.types import NodeId

_AGAIN_S = 1.0  # between two reports about one server
_MAX_GAP_S = 0.5  # longer pauses between ticks do not count: the script computed, and did not try to connect


class ServerReachability:
    """The servers with and without a session. A server without one for `reach_s` seconds is reported."""

    def __init__(self, reach_s: float) -> None:
        self.reach_s = reach_s
        self._running = RunningTime(_MAX_GAP_S)
        self._up: set[NodeId] = set()
        self._missing: dict[NodeId, float] = {}
        self._reported: dict[NodeId, float] = {}

    def set_reach(self, reach_s: float) -> None:
        """Replace `reach_s` by the coordinator's value."""
        self.reach_s = reach_s

    def up(self, peer: NodeId) -> None:
        """Note that a session with `peer` is up."""
        self._up.add(peer)

    def down(self, peer: NodeId) -> None:
        """Note that the session with `peer` has ended."""
        self._up.discard(peer)

    def tick(self, now: float, servers: Collection[NodeId], epoch: int) -> list[Message]:
        """Return the reports that are due about `servers`, which are the primaries in placement `epoch`."""
        ran = self._running.advance(now)
        out: list[Message] = []
        self._missing = {s: self._missing.get(s, ran) for s in servers if s not in self._up}
        for server, since in self._missing.items():
            if ran - since >= self.reach_s and ran - self._reported.get(server, -_AGAIN_S) >= _AGAIN_S:
                self._reported[server] = ran
                out.append(Unreachable(server, ran - since, epoch))
        for server in [s for s in self._reported if s not in self._missing]:
            del self._reported[server]
            if server in self._up:
                out.append(Reachable(server))
        return out
