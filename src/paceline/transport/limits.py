"""The limits of a port: how much it queues for its peers, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.wire.frames import WireLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The limits of one port; each is per peer unless it says otherwise."""

    wire: WireLimits = field(default_factory=WireLimits)
    queue_messages: int = 1000
    """Messages that may wait for a peer; one more ends the session."""
    queue_nbytes: int = 64 << 30
    """Bytes of large frames that may wait for a peer; more ends the session. These frames are not copied, so they take
    no extra memory: the limit must allow all that a peer may ask for at once."""
    handshake_s: float = 5.0
    """A connection that is not proven after this time is closed."""
    max_unproven: int = 256
    """All connections that are not proven yet; the oldest is closed first."""
    linger_s: float = 0.2
    """How long `close` may take to send what is queued for all peers."""
    retry_min_s: float = 0.02
    retry_max_s: float = 0.15
    """The first and the longest pause between two attempts to connect."""
    ping_s: float = 1.0
    quiet_s: float = 2.0
    """On encrypted connections: how often a silent one is pinged, and how long the answer may take."""

    def __post_init__(self) -> None:
        """Refuse limits that would let nothing through."""
        if min(self.queue_messages, self.queue_nbytes, self.max_unproven) < 1:
            raise ValueError(f"every link limit must be at least 1: {self}")
        if min(self.ping_s, self.quiet_s) <= 0:
            raise ValueError(f"ping_s and quiet_s must be above 0: {self}")
        if not 0 < self.retry_min_s <= self.retry_max_s or self.handshake_s <= 0 or not 0 <= self.linger_s <= 10:
            raise ValueError(f"retry_min_s <= retry_max_s, all above 0, linger_s at most 10: {self}")
