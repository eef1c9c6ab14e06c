"""Which user's process listens at a loopback address. The system says so before a byte is exchanged.

ZeroMQ's unencrypted handshake proves nothing about the listener. A process of another user that listens in place of a
dead role could therefore send frames without end until its missing proof is noticed. So a port connects to a process of
its own user only: other processes of that user can read the token anyway.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct

# The system is asked by a netlink socket: struct nlmsghdr, struct inet_diag_req_v2 and struct inet_diag_msg of Linux.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI2s2s16s16sIII")
_ANSWER = struct.Struct("=4s48s12sII")
_ANY_COOKIE = 0xFFFFFFFF


def stranger_at(host: str, port: int) -> int | None:
    """The id of the user who listens at a loopback address, if that is neither this user nor root; otherwise None.

    None as well if nobody listens there, if the system does not say, and for root, who may connect to every user.
    """
    mine = os.geteuid()
    owner = listening_user(host, port) if mine else None
    return None if owner in (None, 0, mine) else owner


def listening_user(host: str, port: int) -> int | None:
    """The id of the user whose socket would accept a connection to `host` and `port`; None if the system knows none."""
    try:
        address = ipaddress.ip_address(host)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(1.0)
            netlink.send(_question(address, port))
            answer = netlink.recv(4096)
    except (ValueError, AttributeError, OSError):  # a name, another system than Linux, or a system that does not tell
        return None
    kind = _HEADER.unpack_from(answer)[1] if len(answer) >= _HEADER.size + _ANSWER.size else errno.ENOENT
    return int(_ANSWER.unpack_from(answer, _HEADER.size)[3]) if kind == _SOCK_DIAG_BY_FAMILY else None


def _question(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> bytes:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    request = _REQUEST.pack(
        family,
        socket.IPPROTO_TCP,
        0,
        0,
        0xFFFFFFFF,
        struct.pack("!H", port),
        bytes(2),
        address.packed.ljust(16, b"\0"),
        bytes(16),
        0,
        _ANY_COOKIE,
        _ANY_COOKIE,
    )
    return _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + request
