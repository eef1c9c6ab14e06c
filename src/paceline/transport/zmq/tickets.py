"""Check tickets: ZeroMQ asks the listener (by its ZAP protocol) whether an unencrypted connection may send frames.

The peer shows a ticket as user name and password (see `paceline.wire.token.make_ticket`). ZeroMQ closes a connection
without a valid ticket. The handshake that follows proves who the peer is.
"""

from __future__ import annotations

import zmq

from paceline.transport.base import Counters
from paceline.transport.zmq.sockets import ZmqContext, ZmqSocket
from paceline.wire.token import TicketGate

_ENDPOINT = "inproc://zeromq.zap.01"
_FRAMES = 8


def open_ticket_socket(context: ZmqContext) -> ZmqSocket:
    """Open the socket on which ZeroMQ asks about connections. Call this before the listener accepts connections."""
    socket = context.socket(zmq.REP)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(_ENDPOINT)
    return socket


class TicketCheck:
    """Answers the questions of ZeroMQ about the connections of one listener."""

    def __init__(self, socket: ZmqSocket, gate: TicketGate, counters: Counters) -> None:
        self._socket = socket
        self._gate = gate
        self._counters = counters

    def answer_one(self) -> bool:
        """Answer one question of ZeroMQ; False if none has come."""
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        admitted = False
        if len(frames) == _FRAMES and frames[5] == b"PLAIN":
            admitted = self._gate.admits(frames[6].decode("latin-1"), frames[7].decode("latin-1"))
        if not admitted:
            self._counters.refuse("ticket")
        status = (b"200", b"OK") if admitted else (b"400", b"no ticket of this job")
        self._socket.send_multipart([b"1.0", frames[1] if len(frames) > 1 else b"", *status, b"", b""])
        return True
