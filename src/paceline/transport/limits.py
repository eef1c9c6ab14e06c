"""The limits of a port: how much it queues for its peers, and how long it waits for an answer from a peer."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.wire.frames import WireLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The limits of one port. The queue limits apply to each peer separately."""

    wire: WireLimits = field(default_factory=WireLimits)
    queue_messages: int = 1000
    """How many messages may wait for a peer; one more message ends the session."""
    queue_nbytes: int = 64 << 30
    """How many bytes of large frames may wait for a peer; a message that exceeds it ends the session. These frames are
    not copied and take no extra memory, so the limit is high: it must allow everything that a peer asks for at once."""
    handshake_s: float = 5.0
    """The port closes a connection whose peer has not proven itself within this many seconds."""
    max_unproven: int = 256
    """How many connections of a port may be unproven at the same time; above this, the port closes the oldest one."""
    linger_s: float = 0.2
    """How many seconds `Port.close` may take to send the queued messages of all peers, and to wait until the systems of
    peers on other hosts have them."""
    retry_min_s: float = 0.02
    retry_max_s: float = 0.15
    """The first and the longest pause, in seconds, between two attempts to connect."""
    ping_s: float = 1.0
    quiet_s: float = 2.0
    """For encrypted connections, in seconds: how often a silent peer is pinged, and how long its answer may take."""

    def __post_init__(self) -> None:
        """Refuse limits with which no message could be sent."""
        if min(self.queue_messages, self.queue_nbytes, self.max_unproven) < 1:
            raise ValueError(f"queue_messages, queue_nbytes and max_unproven must be at least 1: {self}")
        if min(self.ping_s, self.quiet_s) <= 0:
            raise ValueError(f"ping_s and quiet_s must be above 0: {self}")
        if not 0 < self.retry_min_s <= self.retry_max_s or self.handshake_s <= 0 or not 0 <= self.linger_s <= 10:
            raise ValueError(
                "retry_min_s and handshake_s must be above 0, retry_max_s at least retry_min_s, "
                f"linger_s from 0 to 10: {self}"
            )
