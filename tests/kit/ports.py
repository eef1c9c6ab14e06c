"""Ports for tests whose processes must know the port before anybody listens there."""

from __future__ import annotations

import random
import socket

_RANGE = range(20_000, 32_000)
"""Below the ports that the system gives to connections: such a connection cannot take a port that a test has chosen."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody uses. Two test processes hardly ever draw the same one."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        return port
