"""The HTTP server of a predictor: uvicorn, with deadlines for slow clients, a bound on connections, and a drain."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

logger = logging.getLogger(__name__)

HEAD_NBYTES = 64 << 10
"""The longest head of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSpec:
    """Where the server listens, and what a client may cost.

    A connection is closed if the head of a request does not come within `head_s`, or nothing at all for `idle_s`. More
    than `max_connections` connections are closed at once. After SIGTERM, requests have `drain_s` to end.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    key: Path | None = None
    head_s: float = 10.0
    idle_s: float = 75.0
    max_connections: int = 2048
    drain_s: float = 30.0


def require_extra() -> None:
    """Check that the packages of the extra are installed.

    Raises:
        UsageError: one is missing; the message has the line that installs it.
    """
    try:
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(f"serving needs {error.name}: pip install 'paceline[serve]'") from None


def listen(spec: ListenSpec) -> socket.socket:
    """A socket that listens where `spec` says.

    Raises:
        UsageError: the address or the port cannot be used.
    """
    try:
        found = socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM)
        family, kind, proto, _, address = found[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot listen at {spec.host}:{spec.port}: {error.strerror or error} (choose another with --host, --port)"
        ) from None
    return listener


def url_of(spec: ListenSpec, listener: socket.socket) -> str:
    """The address at which clients reach the server."""
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    return f"{'https' if spec.certificate else 'http'}://{host}:{listener.getsockname()[1]}"


async def serve(
    app: Any,
    spec: ListenSpec,
    listener: socket.socket,
    on_drain: Callable[[], None],
    until: asyncio.Future[Any] | None = None,
) -> None:
    """Serve `app` until SIGTERM or SIGINT, and until the requests that came before are answered.

    `on_drain` is called when the signal has come. The server ends, too, when `until` is done.

    Raises:
        UsageError: the certificate or the key cannot be read.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        http=_guarded(spec),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=round(spec.idle_s),
        timeout_graceful_shutdown=round(spec.drain_s),
        ssl_certfile=None if spec.certificate is None else str(spec.certificate),
        ssl_keyfile=None if spec.key is None else str(spec.key),
    )
    try:
        config.load()
    except OSError as error:
        raise UsageError(f"the certificate or its key cannot be used: {error} (--tls-cert, --tls-key)") from None

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            # Not uvicorn's own, which would end this process by the signal once all requests are answered.
            on_drain()
            self.force_exit = self.should_exit
            self.should_exit = True

    server = Server(config)
    if until is not None:
        until.add_done_callback(lambda _: setattr(server, "should_exit", True))
    await server.serve(sockets=[listener])


def _guarded(spec: ListenSpec) -> type[asyncio.Protocol]:
    """Uvicorn's protocol for one connection, with the limits of `spec`."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Guarded(HttpToolsProtocol):
        """Closes a connection whose client sends the head of a request too slowly, or too much of it."""

        _deadline: asyncio.TimerHandle | None = None
        _head_nbytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > spec.max_connections:
                logger.warning("more than %d connections: one is closed", spec.max_connections)
                transport.abort()
                return
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_there()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._deadline is not None:
                self._head_nbytes += len(data)
            super().data_received(data)
            if self._deadline is not None and self._head_nbytes > HEAD_NBYTES:
                self.transport.abort()

        def on_message_begin(self) -> None:
            self._expect_head()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head_is_there()
            super().on_headers_complete()

        def _expect_head(self) -> None:
            if self._deadline is None:
                self._head_nbytes = 0
                self._deadline = self.loop.call_later(spec.head_s, self._too_slow)

        def _head_is_there(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_slow(self) -> None:
            self._deadline = None
            self.transport.abort()

    return Guarded
