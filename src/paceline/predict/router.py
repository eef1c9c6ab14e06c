"""A router before several predictors: least-loaded routing, one retry when a predictor dies, and their restarts."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from paceline.core.predict.balance import Balance
from paceline.errors import RequestError
from paceline.predict import metrics as text
from paceline.predict.calls import Call, Reply, json_reply, refusal
from paceline.predict.link import Asked, decode_told, read_message, write_message
from paceline.predict.metrics import Counter, with_label

logger = logging.getLogger(__name__)

Start = Callable[[socket.socket], Awaitable[Process]]
"""Starts the process of a predictor, which gets this end of a socket pair."""

_WAIT_S = 10.0  # how long a request waits for a predictor that can answer
_PING_S, _SILENT_S, _END_S = 1.0, 10.0, 5.0
_AGAIN_S = 0.5  # between the end of a predictor and the start of its successor, at first
_MOST_AGAIN_S = 30.0
_CANNOT = (2, 3)  # exit codes of a predictor that cannot serve what it shall


class _Waiting(NamedTuple):
    call: Call
    answer: asyncio.Future[Reply]


class Router:
    """A backend that gives each call to one of `count` predictors. Use it from one event loop; `close` ends them.

    A predictor that dies is started again. Its calls go to another one, once; the answer of a call that has no second
    predictor in time, or whose second predictor dies too, is an error (503). `failed` gets the exit code of a predictor
    that cannot begin.
    """

    def __init__(self, count: int, start: Start, max_waiting: int) -> None:
        """At most `max_waiting` calls are under way: more are refused (429)."""
        self._start = start
        self._max_waiting = max_waiting
        self._balance = Balance()
        self._calls: dict[int, _Waiting] = {}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._heard: dict[str, float] = {}
        self._number = 0
        self._some_ready, self._ending = asyncio.Event(), asyncio.Event()
        self._refused = Counter("paceline_refused_total", "Requests refused before their body was read.", ("status",))
        self._deaths = Counter("paceline_predictor_deaths_total", "Predictors that died.", ("predictor",))
        self._retried = Counter("paceline_retried_total", "Requests given to a second predictor.", ())
        self.draining = False
        self.failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.ensure_future(self._keep(f"predictor-{n}")) for n in range(count)]

    # ------------------------------------------------------------ calls

    def note_refused(self, status: int) -> None:
        """Count a request that was refused before its body was read."""
        self._refused.add(str(status))

    async def answer(self, call: Call) -> Reply:
        """The answer of a predictor; health and metrics are those of all together."""
        try:
            if call.path == "/v2/health/live":
                return json_reply({"live": True})
            if call.path == "/v2/health/ready":
                ready = bool(self._balance.ready) and not self.draining
                return json_reply({"ready": ready, "predictors": len(self._balance.ready)}, 200 if ready else 503)
            if call.path == "/metrics":
                return await self._metrics()
            return await self._ask(call)
        except RequestError as error:
            return refusal(error)

    async def _ask(self, call: Call, name: str | None = None) -> Reply:
        if len(self._calls) >= self._max_waiting:
            raise RequestError(429, f"{len(self._calls)} requests are under way: try again later", retry_after_s=1.0)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = _Waiting(call, answer)
        try:
            if name is None:
                await self._give(number)
            else:
                self._send(name, number)
            return await answer
        finally:
            self._balance.done(number)
            del self._calls[number]

    async def _give(self, number: int) -> None:
        """Give a call to a predictor; wait for one that can answer, for some seconds."""
        try:
            async with asyncio.timeout(_WAIT_S):
                while (name := self._balance.give(number)) is None:
                    self._some_ready.clear()
                    await self._some_ready.wait()
        except TimeoutError:
            raise RequestError(503, "no predictor can answer now", retry_after_s=2.0) from None
        self._send(name, number)

    def _send(self, name: str, number: int) -> None:
        call = self._calls[number].call
        write_message(self._writers[name], Asked(number, call.method, call.path, call.body, call.header_length))

    async def _metrics(self) -> Reply:
        names = self._balance.ready
        replies = await asyncio.gather(*(self._ask(Call("GET", "/metrics"), name) for name in names))
        texts = {name: reply.body.decode() for name, reply in zip(names, replies, strict=True)}
        own = (self._refused, self._deaths, self._retried)
        return Reply(200, with_label("predictor", texts, own).encode(), {"content-type": text.TYPE})

    # ------------------------------------------------------------ predictors

    async def _keep(self, name: str) -> None:
        """Keep the predictor called `name` alive: start it again whenever it has ended."""
        again_s = _AGAIN_S
        while True:
            began = time.monotonic()
            ours, theirs = socket.socketpair()
            process = await self._start(theirs)
            theirs.close()
            reader, writer = await asyncio.open_connection(sock=ours)
            self._writers[name] = writer
            if self._ending.is_set():
                writer.close()
            ping = asyncio.ensure_future(self._watch(name, process))
            try:
                while (content := await read_message(reader)) is not None:
                    self._receive(name, *decode_told(content))
            finally:
                ping.cancel()
                self._lost(name)
                writer.close()
                await _end(process)
            if self._ending.is_set():
                return
            if name not in self._heard and process.returncode in _CANNOT:
                if not self.failed.done():
                    self.failed.set_result(process.returncode or 0)
                return
            again_s = _AGAIN_S if time.monotonic() - began > _MOST_AGAIN_S else min(_MOST_AGAIN_S, 2 * again_s)
            logger.warning("%s ended with %s; it starts again", name, process.returncode)
            self._deaths.add(name)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), again_s)
                return

    def _receive(self, name: str, number: int, reply: Reply) -> None:
        self._heard[name] = time.monotonic()
        if number == 0:
            self._balance.add(name)
            self._some_ready.set()
            return
        waiting = self._calls.get(number)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(reply)

    def _lost(self, name: str) -> None:
        """Give the calls of a predictor that has died to others."""
        self._writers.pop(name, None)
        again, failed = self._balance.lost(name)
        for number in again:
            self._retried.add()
            asyncio.ensure_future(self._give_again(number))  # noqa: RUF006  # its call waits for the answer
        for number in failed:
            self._fail(number, RequestError(503, "two predictors ended with this request", retry_after_s=2.0))

    async def _give_again(self, number: int) -> None:
        try:
            await self._give(number)
        except RequestError as error:
            self._fail(number, error)

    def _fail(self, number: int, error: RequestError) -> None:
        waiting = self._calls.get(number)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(error)

    async def _watch(self, name: str, process: Process) -> None:
        """Kill a predictor that does not answer: its process may be stopped."""
        while True:
            await asyncio.sleep(_PING_S)
            if name not in self._balance.ready:
                continue
            if time.monotonic() - self._heard[name] > _SILENT_S:
                logger.warning("%s has not answered for %.0f s: it is killed", name, _SILENT_S)
                process.kill()
                return
            write_message(self._writers[name], Asked(-1, "GET", "/v2/health/live", b"", None))

    async def close(self) -> None:
        """End the predictors, after the calls under way have their answers."""
        self.draining = True
        self._ending.set()
        for writer in self._writers.values():
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _end(process: Process) -> None:
    """Wait for the end of a process whose connection is closed; kill it if it does not come."""
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
