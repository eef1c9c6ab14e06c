"""Two processes prove to each other that they know the job's token, without sending it. No I/O.

::

    client                                              server
      HELLO(version, node c, nonce c, blocks)  ---->
                                               <----    CHALLENGE(node s, nonce s, proof s, blocks)
      PROOF(proof c)                           ---->
                                               <----    ACCEPTED(offer, sealed or plain offer)
      LANE(local, sealed, plain or tcp)        ---->

A proof is the HMAC-SHA256, with the token as key, of the role, the protocol version, both nonces, both node ids, and
whether blocks travel unsealed. So a proof is valid only for one role in one handshake of these two processes. An offer
names a unix socket of the server and a one-time secret that the client must send there. A sealed offer, which is made
on encrypted connections only, names a TCP port of the server, such a secret, and the secret from which both sides make
the keys of the sealed connection. A plain offer, which is made on unencrypted connections (loopback) only, names a TCP
port and two one-time secrets: the client sends the first there, and the server answers with the second. The client
chooses the *lane*, and only then does either side send a message: all messages of a session use the same lane. Every
control frame starts with a byte that no message starts with, so a receiver can tell the two apart.

A connection without encryption also shows a *ticket* before it may send any frame: see `make_ticket` in `token`.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal, NamedTuple

import msgspec

from paceline.errors import AuthenticationError, RefusedFrameError
from paceline.types import NodeId
from paceline.wire.token import VERSION, check_token, mac, proofs_match

NONCE_NBYTES = 32
LaneName = Literal["local", "sealed", "plain", "tcp"]
_MAX_CONTROL_NBYTES = 1024

# 0xc1 is the one byte that msgpack never uses: no encoded message starts with it.
_MAGIC = b"\xc1PCL"
_PREFIX = struct.Struct("!4sH")
_NODE = re.compile(r"[A-Za-z0-9._/#-]{1,128}")


def check_node(node: NodeId) -> NodeId:
    """Return `node` if it has the form of a node id.

    Raises:
        RefusedFrameError: rule ``node``: it does not have that form.
    """
    if not _NODE.fullmatch(node):
        raise RefusedFrameError("node", f"{node[:40]!r} is not a node id ({_NODE.pattern})")
    return node


# ---------------------------------------------------------------- control frames


class Control(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of the control frames, which set up and end a connection. They never reach a role."""


class Hello(Control, frozen=True):
    """The client's first frame. Its node id is not proven yet."""

    node: str
    nonce: bytes
    insecure_blocks: bool | None = None
    """Whether this side sends blocks unsealed; None if it does as the server does."""


class Challenge(Control, frozen=True):
    """The server's answer, with the server's proof. If the proof is wrong, the client sends nothing more."""

    node: str
    nonce: bytes
    proof: bytes
    insecure_blocks: bool = False
    """Whether the server sends blocks unsealed."""


class Proof(Control, frozen=True):
    """The client's proof."""

    proof: bytes


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Offers a local link to a client on the same host."""

    name: str
    """The abstract name of the server's unix socket, which exists in one network namespace of one host."""
    nonce: bytes
    """The one-time secret that the client sends to that socket, so that the server finds the session."""


class StreamOffer(msgspec.Struct, frozen=True, array_like=True):
    """Offers a second TCP connection for the messages of the session."""

    host: str
    """The address at which the server listens."""
    port: int
    nonce: bytes
    """The one-time name of the connection, which the client sends first and in clear."""
    secret: bytes
    """What only the two sides know: they make the keys of a sealed connection from it, and the server answers with it
    on a plain one."""


class Accepted(Control, frozen=True, tag="Welcome"):
    """The server's last frame: both sides are proven. The client may accept one of the offers."""

    offer: Offer | None = None
    sealed: StreamOffer | None = None
    """Sent on encrypted connections only."""
    plain: StreamOffer | None = None
    """Sent on connections without encryption only."""


class Lane(Control, frozen=True):
    """The client's choice of the lane, which all messages of the session use."""

    lane: LaneName


class Farewell(Control, frozen=True):
    """Tells the peer that the sender ends this connection; `rule` says why: ``token``, ``version``, ``closed`` ..."""

    rule: str
    detail: str


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(
    Hello | Challenge | Proof | Accepted | Lane | Farewell,
)


def is_control(header: bytes | memoryview) -> bool:
    """Whether this first frame is a control frame, not the header of a message."""
    return len(header) > 0 and header[0] == _MAGIC[0]


def encode_control(control: Control, *, version: int = VERSION) -> bytes:
    """Encode `control` as bytes that begin with the magic bytes and the protocol version."""
    return _PREFIX.pack(_MAGIC, version) + _ENCODER.encode(control)


def decode_control(frame: bytes) -> Control:
    """Decode the control frame in `frame`.

    Raises:
        RefusedFrameError: rule ``control`` for malformed bytes, ``version`` for another version of the protocol
            (the bytes after the version are not read then).
    """
    if not _PREFIX.size <= len(frame) <= _MAX_CONTROL_NBYTES:
        raise RefusedFrameError("control", f"{len(frame)} bytes")
    magic, version = _PREFIX.unpack_from(frame)
    if magic != _MAGIC:
        raise RefusedFrameError("control", "the frame does not begin with the magic bytes of a control frame")
    if version != VERSION:
        raise RefusedFrameError(
            "version",
            f"the peer uses protocol {version}, this process {VERSION}: install the same Paceline everywhere",
        )
    try:
        return _DECODER.decode(frame[_PREFIX.size :])
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise RefusedFrameError("control", str(error)) from None


# ---------------------------------------------------------------- proofs


def _check_nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_NBYTES:
        raise RefusedFrameError("control", f"a nonce must have {NONCE_NBYTES} bytes, not {len(nonce)}")
    return nonce


def _agreed(client: bool | None, server: bool) -> bool:
    """Whether blocks travel unsealed, if both sides say the same; the client may leave it to the server.

    Raises:
        RefusedFrameError: rule ``insecure-blocks``: they do not say the same.
    """
    if client is not None and client != server:
        raise RefusedFrameError(
            "insecure-blocks",
            f"insecure_blocks is {client} on the connecting and {server} on the listening side: "
            "start all roles of a run with the same insecure_blocks",
        )
    return server


class SealKeys(NamedTuple):
    """The keys of one side of a sealed connection, and whether blocks travel unsealed on it."""

    sending: bytes
    receiving: bytes
    insecure_blocks: bool


def _keys(token: bytes, secret: bytes, names: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The keys for what the client and for what the server sends.

    `secret` was sent on an encrypted connection with keys of its own, so it stays unknown to somebody who has recorded
    everything and learns the token later.
    """
    return mac(token, b"seal client", secret, *names), mac(token, b"seal server", secret, *names)


class _State(Enum):
    START = auto()
    WAITING = auto()
    CHOOSING = auto()
    DONE = auto()
    FAILED = auto()


class ClientHandshake:
    """The connecting side: send `hello()`, pass every answer to `receive` until `accepted` is set, then `choose`.

    An exception ends the handshake: open a new connection and use a new object.
    """

    def __init__(
        self, node: NodeId, token: bytes, *, nonce: bytes | None = None, insecure_blocks: bool | None = False
    ) -> None:
        """With `insecure_blocks` None, this side does as the server does."""
        self._node = check_node(node)
        self._token = check_token(token)
        self._nonce = _check_nonce(secrets.token_bytes(NONCE_NBYTES) if nonce is None else nonce)
        self._state = _State.START
        self._insecure_blocks = insecure_blocks
        self._names: tuple[bytes, ...] = ()
        self._proven: NodeId | None = None
        self._accepted: Accepted | None = None

    @property
    def peer(self) -> NodeId | None:
        """The server's node id, once both sides are proven and the lane is chosen."""
        return self._proven if self._state is _State.DONE else None

    @property
    def accepted(self) -> Accepted | None:
        """The server's last frame, once both sides are proven."""
        return self._accepted

    def hello(self) -> bytes:
        """The first frame to send."""
        return encode_control(Hello(self._node, self._nonce, self._insecure_blocks))

    def receive(self, frame: bytes) -> bytes | None:
        """Take one frame; returns the frame to send next, None if there is none.

        Raises:
            AuthenticationError: the server did not prove that it knows the token, or it refuses this side.
            RefusedFrameError: the frame is malformed, out of order, or of another version.
        """
        before, self._state = self._state, _State.FAILED
        match decode_control(frame):
            case Challenge(node, nonce, proof, insecure) if before is _State.START:
                both = (self._nonce, _check_nonce(nonce), self._node.encode(), check_node(node).encode())
                names = (*both, bytes([insecure]))
                if not proofs_match(mac(self._token, b"server", *names), proof):
                    raise AuthenticationError(f"{node} did not prove that it knows this job's token")
                self._insecure_blocks = _agreed(self._insecure_blocks, insecure)
                self._names = names
                self._proven, self._state = node, _State.WAITING
                return encode_control(Proof(mac(self._token, b"client", *names)))
            case Accepted() as accepted if before is _State.WAITING:
                if accepted.offer is not None:
                    _check_nonce(accepted.offer.nonce)
                for stream in (accepted.sealed, accepted.plain):
                    if stream is not None:
                        _check_nonce(stream.nonce)
                        _check_nonce(stream.secret)
                self._accepted, self._state = accepted, _State.CHOOSING
                return None
            case Farewell(rule, detail):
                if rule in ("token", "unauthenticated"):
                    raise AuthenticationError(f"refused by the peer ({rule}): {detail}")
                raise RefusedFrameError(rule, detail)
            case other:
                raise RefusedFrameError("control", f"{type(other).__name__} out of order")

    def keys(self) -> SealKeys:
        """The keys for the connection that the server has offered."""
        assert self._accepted is not None
        assert self._accepted.sealed is not None
        client, server = _keys(self._token, self._accepted.sealed.secret, self._names)
        return SealKeys(client, server, bool(self._insecure_blocks))

    def choose(self, lane: LaneName) -> bytes:
        """Return the last frame to send, which names the chosen `lane`. All messages then use this lane."""
        assert self._state is _State.CHOOSING
        self._state = _State.DONE
        return encode_control(Lane(lane))


class ServerHandshake:
    """The listening side of one connection: pass every frame to `receive` until `peer` is set.

    Until `peer` is set, nothing that the client sent is proven, not even its node id.
    """

    def __init__(
        self,
        node: NodeId,
        token: bytes,
        *,
        nonce: bytes | None = None,
        offer: Offer | None = None,
        sealed: StreamOffer | None = None,
        plain: StreamOffer | None = None,
        insecure_blocks: bool = False,
    ) -> None:
        self._node = check_node(node)
        self._token = check_token(token)
        self._nonce = _check_nonce(secrets.token_bytes(NONCE_NBYTES) if nonce is None else nonce)
        self._state = _State.START
        self._insecure_blocks = insecure_blocks
        self._names: tuple[bytes, ...] = ()
        self._claimed: NodeId = ""
        self._expected = b""
        self.offer = offer
        self.sealed = sealed
        self.plain = plain
        self.lane: LaneName | None = None
        """The lane that the client has chosen; None until it has chosen."""

    @property
    def peer(self) -> NodeId | None:
        """The client's node id, once both sides are proven and the client has chosen its lane."""
        return self._claimed if self._state is _State.DONE else None

    def keys(self) -> SealKeys:
        """The keys for the connection that was offered."""
        assert self.sealed is not None
        client, server = _keys(self._token, self.sealed.secret, self._names)
        return SealKeys(server, client, self._insecure_blocks)

    def receive(self, frame: bytes) -> bytes | None:
        """Take one frame; returns the frame to send next, None if there is none.

        Raises:
            AuthenticationError: the client did not prove that it knows the token.
            RefusedFrameError: the frame is malformed, out of order, or of another version.
        """
        before, self._state = self._state, _State.FAILED
        match decode_control(frame):
            case Hello(node, nonce, insecure) if before is _State.START:
                both = (_check_nonce(nonce), self._nonce, check_node(node).encode(), self._node.encode())
                self._names = names = (*both, bytes([_agreed(insecure, self._insecure_blocks)]))
                self._claimed = node
                self._expected = mac(self._token, b"client", *names)
                self._state = _State.WAITING
                proof = mac(self._token, b"server", *names)
                return encode_control(Challenge(self._node, self._nonce, proof, self._insecure_blocks))
            case Proof(proof) if before is _State.WAITING:
                if not proofs_match(self._expected, proof):
                    raise AuthenticationError("the peer did not prove that it knows this job's token")
                self._state = _State.CHOOSING
                return encode_control(Accepted(self.offer, self.sealed, self.plain))
            case Lane(lane) if before is _State.CHOOSING:
                offers = {"local": self.offer, "sealed": self.sealed, "plain": self.plain}
                if lane in offers and offers[lane] is None:
                    raise RefusedFrameError("control", "the client chose a lane that was not offered")
                self.lane, self._state = lane, _State.DONE
                return None
            case other:
                raise RefusedFrameError("control", f"{type(other).__name__} out of order")
