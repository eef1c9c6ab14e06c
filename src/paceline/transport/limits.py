"""How much a port holds for its peers, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.wire.frames import WireLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The bounds of one port; each is per peer unless it says otherwise."""

    wire: WireLimits = field(default_factory=WireLimits)
    queue_messages: int = 1000
    """Messages waiting for a peer; one more ends the session by name."""
    queue_nbytes: int = 64 << 30
    """Bytes of large frames waiting for a peer; more ends the session by name. They are not copied, so this is no
    memory of its own: it must hold all that a peer may ask for at once."""
    handshake_s: float = 5.0
    """A connection that is not proven after this long is dropped."""
    max_unproven: int = 256
    """Connections not yet proven, in all; the oldest is dropped first."""
    linger_s: float = 0.2
    """How long `close` may take to hand over what is queued, in all."""
    retry_min_s: float = 0.02
    retry_max_s: float = 0.15
    """Between two attempts to connect: the first pause, and the longest."""
    ping_s: float = 1.0
    quiet_s: float = 2.0
    """Across a network, how often a connection on which nothing comes is tried, and how long the answer may take."""

    def __post_init__(self) -> None:
        """Refuse bounds that would let nothing through."""
        if min(self.queue_messages, self.queue_nbytes, self.max_unproven) < 1:
            raise ValueError(f"every link limit must be at least 1: {self}")
        if min(self.ping_s, self.quiet_s) <= 0:
            raise ValueError(f"ping_s and quiet_s must be above 0: {self}")
        if not 0 < self.retry_min_s <= self.retry_max_s or self.handshake_s <= 0 or not 0 <= self.linger_s <= 10:
            raise ValueError(f"retry_min_s <= retry_max_s, all above 0, linger_s at most 10: {self}")
