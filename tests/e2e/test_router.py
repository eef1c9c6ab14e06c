"""Several predictors behind one router: real processes, killed and stopped under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.kit.real_runs import SCRIPTS, environment

from paceline.predict import router as module
from paceline.predict.calls import Call, Reply
from paceline.predict.router import Router

pytestmark = pytest.mark.real_run


def routed(use: Callable[[Router, list[Process]], Coroutine[Any, Any, None]], count: int, waiting: int = 1000) -> None:
    """Let `use` work with a router of `count` predictors, and with all processes that it has started."""

    async def run() -> None:
        started: list[Process] = []

        async def start(end: socket.socket) -> Process:
            words = (sys.executable, str(SCRIPTS / "light_predictor.py"), str(end.fileno()))
            process = await asyncio.create_subprocess_exec(*words, pass_fds=[end.fileno()], env=environment())
            started.append(process)
            return process

        router = Router(count, start, waiting)
        try:
            await use(router, started)
        finally:
            await router.close()
        assert all(process.returncode is not None for process in started)

    asyncio.run(run())


async def ask(router: Router, number: int) -> Reply:
    return await router.answer(Call("POST", "/x", b"%d" % number))


def test_no_accepted_request_is_lost_when_predictors_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    chosen = random.Random(5)

    async def use(router: Router, started: list[Process]) -> None:
        asked: list[asyncio.Task[Reply]] = []
        for number in range(600):
            asked.append(asyncio.ensure_future(ask(router, number)))
            await asyncio.sleep(0.003)
            alive = [p for p in started if p.returncode is None]
            if number % 60 == 30 and len(router._balance.ready) > 1:
                chosen.choice(alive).kill()
        replies = await asyncio.gather(*asked)
        assert [reply.status for reply in replies] == [200] * 600
        assert [reply.body for reply in replies] == [b"%d" % number for number in range(600)]
        assert len(started) > 5
        assert len({reply.headers["pid"] for reply in replies}) > 3

    routed(use, 3)


def test_a_stopped_predictor_is_killed_and_its_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.5)
    monkeypatch.setattr(module, "_PING_S", 0.1)

    async def use(router: Router, started: list[Process]) -> None:
        assert (await ask(router, 0)).status == 200
        while len(router._balance.ready) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(started[0].pid, signal.SIGSTOP)
        replies = await asyncio.gather(*(ask(router, number) for number in range(20)))
        assert {reply.status for reply in replies} == {200}

    routed(use, 2)


def test_without_a_predictor_a_request_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.2)
    monkeypatch.setattr(module, "_END_S", 0.1)

    async def use(router: Router, started: list[Process]) -> None:
        refused = await asyncio.gather(*(ask(router, number) for number in range(3)))
        assert sorted(reply.status for reply in refused) == [429, 503, 503]
        assert refused[0].headers["retry-after"] == "2"

    async def start(end: socket.socket) -> Process:
        return await asyncio.create_subprocess_exec("sleep", "30")

    async def run() -> None:
        router = Router(1, start, 2)
        try:
            await use(router, [])
        finally:
            await router.close()

    asyncio.run(run())
