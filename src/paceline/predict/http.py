"""The HTTP front of a predictor, as an ASGI application: who is let in, how much is read, and what is written down."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from paceline.core.predict.admission import AdmissionRules, admit
from paceline.errors import RequestError
from paceline.predict.calls import PAGE, Call, Reply, refusal
from paceline.predict.protocol import HEADER_LENGTH

logger = logging.getLogger("paceline.predict.access")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_BODY_S = 30.0  # seconds in which the body of a request must have come


class Backend(Protocol):
    """Answers calls: the models of this process, or a router to other predictors."""

    async def answer(self, call: Call) -> Reply:
        """The answer; it raises nothing."""
        ...

    def note_refused(self, status: int) -> None:
        """Count a request that was refused before its body was read."""
        ...


class HttpFront:
    """The ASGI application. `max_nbytes` bounds a body that is decompressed."""

    def __init__(self, backend: Backend, rules: AdmissionRules, *, max_nbytes: int, body_s: float = _BODY_S) -> None:
        self._backend = backend
        self._rules = rules
        self._max_nbytes = max_nbytes
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        method, path = scope["method"], scope["path"]
        headers, duplicated = _headers(scope["headers"])
        open_rules = self._rules if path not in PAGE else _without_token(self._rules)
        try:
            admit(open_rules, method, path, headers, duplicated)
            body = await self._body(headers, receive) if method == "POST" else b""
        except RequestError as error:
            self._backend.note_refused(error.status)
            reply, close = refusal(error), True
        else:
            reply = await self._backend.answer(Call(method, path, body, headers.get(HEADER_LENGTH)))
            close = False
        await _send(send, reply, head=method == "HEAD", close=close)
        if logger.isEnabledFor(logging.INFO):
            client = (scope.get("client") or ("-",))[0]
            version, ms = reply.headers.get("paceline-version", "-"), 1e3 * (time.monotonic() - began)
            logger.info("%s %s %s %d %d %.1f ms %s", client, method, path, reply.status, len(reply.body), ms, version)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        """The body, decompressed.

        Raises:
            RequestError: it is too long, is cut off, comes too slowly, or is not what its headers say.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "the body is cut off: the client has closed the connection")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._rules.max_body_nbytes:
                        raise RequestError(413, f"the body has more than {self._rules.max_body_nbytes} bytes")
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise RequestError(408, f"the body did not come within {self._body_s:g} s") from None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._decompressed(body, headers.get("content-encoding", ""))

    def _decompressed(self, body: bytes, coding: str) -> bytes:
        coding = coding.strip().lower()
        if coding in ("", "identity"):
            return body
        if coding not in ("gzip", "deflate"):
            raise RequestError(415, f"Content-Encoding {coding[:20]!r} is not known: use gzip, deflate or none")
        decoder = zlib.decompressobj(47 if coding == "gzip" else 15)
        try:
            found = decoder.decompress(body, self._max_nbytes + 1)
        except zlib.error:
            raise RequestError(400, f"the body is not {coding}") from None
        if len(found) > self._max_nbytes or decoder.unconsumed_tail:
            raise RequestError(413, f"the body has more than {self._max_nbytes} bytes once it is decompressed")
        if not decoder.eof:
            raise RequestError(400, f"the {coding} body is cut off")
        return found


def _without_token(rules: AdmissionRules) -> AdmissionRules:
    """The rules for the page itself: a browser cannot send a token with a link. The page asks for it."""
    return AdmissionRules(hosts=rules.hosts, token=None, max_body_nbytes=rules.max_body_nbytes)


def _headers(raw: list[tuple[bytes, bytes]]) -> tuple[dict[str, str], frozenset[str]]:
    found: dict[str, str] = {}
    twice: set[str] = set()
    for key, value in raw:
        name = key.decode("latin-1")
        if name in found:
            twice.add(name)
        found[name] = value.decode("latin-1")
    return found, frozenset(twice)


async def _send(send: Send, reply: Reply, *, head: bool, close: bool) -> None:
    headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in reply.headers.items()]
    headers.append((b"content-length", b"%d" % len(reply.body)))
    if close:
        headers.append((b"connection", b"close"))  # its body is not read
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else reply.body})
