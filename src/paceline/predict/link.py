"""The connection between a router and one of its predictors: calls one way, replies the other, on a socket pair."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from paceline.predict.calls import Call, Reply

if TYPE_CHECKING:
    from paceline.predict.endpoints import Endpoints

_LENGTH = 8


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """A call with its number. Number 0 has no answer: it stands for the state of the predictor."""

    number: int
    method: str
    path: str
    body: bytes
    header_length: str | None


class Told(msgspec.Struct, array_like=True, frozen=True):
    """The reply to the call `number`; number 0 says that the predictor can answer."""

    number: int
    status: int
    body: bytes
    headers: dict[str, str]


_ENCODE = msgspec.msgpack.Encoder()
_ASKED, _TOLD = msgspec.msgpack.Decoder(Asked), msgspec.msgpack.Decoder(Told)


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """The next message; None when the other side has closed or died."""
    try:
        head = await reader.readexactly(_LENGTH)
        return await reader.readexactly(int.from_bytes(head, "little"))
    except (asyncio.IncompleteReadError, OSError):
        return None


def write_message(writer: asyncio.StreamWriter, message: Asked | Told) -> None:
    """Queue a message for the other side."""
    content = _ENCODE.encode(message)
    writer.write(len(content).to_bytes(_LENGTH, "little"))
    writer.write(content)


async def answer_calls(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    endpoints: Endpoints,
    until_ready: Callable[[], Awaitable[None]],
) -> None:
    """Answer the calls of a router until it closes the connection. `until_ready` ends when the models can answer."""
    tasks: set[asyncio.Task[None]] = set()

    async def say_ready() -> None:
        await until_ready()
        write_message(writer, Told(0, 200, b"", {}))

    async def answer(asked: Asked) -> None:
        reply = await endpoints.answer(Call(asked.method, asked.path, asked.body, asked.header_length))
        write_message(writer, Told(asked.number, reply.status, reply.body, dict(reply.headers)))
        await writer.drain()

    def begin(work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    begin(say_ready())
    while (content := await read_message(reader)) is not None:
        begin(answer(_ASKED.decode(content)))
    for task in tasks:
        task.cancel()


def decode_told(content: bytes) -> tuple[int, Reply]:
    """The number and the reply in a message of a predictor."""
    told = _TOLD.decode(content)
    return told.number, Reply(told.status, told.body, told.headers)
