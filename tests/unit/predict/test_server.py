"""The limits on connections, at a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.predict.server import HEAD_NBYTES, ListenSpec, listen, serve

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def at(use: Callable[[int], Awaitable[None]], **limits: Any) -> None:
    async def run() -> None:
        spec = ListenSpec(port=0, **limits)
        with closing(listen(spec)) as listener:
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            server = asyncio.ensure_future(serve(app, spec, listener, lambda: None, until=end))
            try:
                await use(listener.getsockname()[1])
            finally:
                end.set_result(None)
                await server

    asyncio.run(run())


async def told(port: int, sent: bytes, *, wait_s: float = 5.0) -> bytes:
    """What the server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(wait_s):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST[:-2] + b"X-Slow: "])
def test_a_head_that_does_not_come_in_time_ends_the_connection(sent: bytes) -> None:
    async def use(port: int) -> None:
        assert await told(port, sent) == b""

    at(use, head_s=0.1)


def test_a_head_without_an_end_ends_the_connection() -> None:
    async def use(port: int) -> None:
        assert await told(port, REQUEST[:-2] + b"X: " + b"x" * (HEAD_NBYTES + 100)) == b""

    at(use)


def test_connections_above_the_limit_are_closed_and_the_others_answered() -> None:
    async def use(port: int) -> None:
        first = await asyncio.open_connection("127.0.0.1", port)
        second = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
        assert await told(port, REQUEST) == b""
        first[1].write(REQUEST)
        assert (await first[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        for _, writer in (first, second):
            writer.close()

    at(use, max_connections=2)


def test_a_port_in_use_is_a_usage_error() -> None:
    with closing(listen(ListenSpec(port=0))) as taken, pytest.raises(UsageError, match="--port"):
        listen(ListenSpec(port=taken.getsockname()[1]))
