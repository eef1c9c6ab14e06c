"""A predictor without a model: answers each call after a moment with its process id. For tests of the router."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from paceline.predict.calls import Call, Reply
from paceline.predict.link import answer_calls


class Echo:
    async def answer(self, call: Call) -> Reply:
        await asyncio.sleep(0.02)
        return Reply(200, call.body, {"pid": str(os.getpid())})


async def main() -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(sys.argv[1])))

    async def ready() -> None:
        return None

    await answer_calls(reader, writer, Echo(), ready)  # type: ignore[arg-type]
    writer.close()


asyncio.run(main())
