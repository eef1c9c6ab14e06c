"""Serves models by several processes behind one address. This process routes; it does not load torch."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import closing

from paceline.core.predict.admission import AdmissionRules, check_exposure
from paceline.errors import ClusterLostError, UsageError
from paceline.predict.http import HttpFront
from paceline.predict.router import Router
from paceline.predict.server import listen, require_extra, serve, url_of
from paceline.runtime.serve_plan import ServePlan, encode_plan

MODULE = "paceline.runtime.predictor_process"


def run_router(plan: ServePlan, say: Callable[[str], None]) -> None:
    """Serve by `plan.workers` predictors until SIGTERM or SIGINT.

    Raises:
        UsageError: something of the plan cannot be served; the predictor has said why.
    """
    require_extra()
    check_exposure(plan.listen.host, plan.token)
    with closing(listen(plan.listen)) as listener:
        asyncio.run(_route(plan, listener, say))


async def _route(plan: ServePlan, listener: socket.socket, say: Callable[[str], None]) -> None:
    word = encode_plan(plan)

    async def start(end: socket.socket) -> Process:
        command = (sys.executable, "-m", MODULE, str(os.getpid()), str(end.fileno()), word)
        return await asyncio.create_subprocess_exec(*command, pass_fds=[end.fileno()], stdin=asyncio.subprocess.DEVNULL)

    router = Router(plan.workers, start, plan.batch.max_queued_rows * plan.workers)
    rules = AdmissionRules(hosts=frozenset(plan.hosts), token=plan.token, max_body_nbytes=plan.max_body_nbytes)

    def drain() -> None:
        router.draining = True
        say("ending: requests that have come are answered")

    say(f"{plan.workers} predictors are started")
    say(f"serving at {url_of(plan.listen, listener)} (Ctrl-C ends it)")
    try:
        await serve(
            HttpFront(router, rules, max_nbytes=plan.max_body_nbytes), plan.listen, listener, drain, until=router.failed
        )
    finally:
        await router.close()
    if router.failed.done():
        code = router.failed.result()
        raise (UsageError if code == 2 else ClusterLostError)("the predictors cannot begin: see above")
