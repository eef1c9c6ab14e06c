"""The process of one predictor: ``python -m paceline.runtime.predictor_process PARENT FD PLAN``, started by a router.

FD is its end of a socket pair with the router, PLAN what it serves. It ends when the router closes the pair.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from paceline.errors import PacelineError, UsageError
from paceline.orphans import die_with_parent
from paceline.predict.endpoints import Endpoints
from paceline.predict.link import answer_calls
from paceline.predict.models import Models
from paceline.runtime.serve_plan import ServePlan, decode_plan
from paceline.runtime.serving import opened
from paceline.telemetry import logs

_LOOK_S = 0.05

EXIT_USAGE, EXIT_LOST = 2, 3


def main(argv: list[str]) -> int:
    """Answer the router until it closes the connection; returns the exit code."""
    parent, number, word = argv
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the router, which lets requests end
    plan = decode_plan(word)
    logs.set_up(plan.log_level, plan.log_format, process="predictor")
    try:
        with opened(plan) as (models, _):
            asyncio.run(_answer(plan, Models(models), socket.socket(fileno=int(number))))
    except PacelineError as error:
        sys.stderr.write(f"paceline: {error}\n")
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_LOST
    return 0


async def _answer(plan: ServePlan, models: Models, connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    with ThreadPoolExecutor(1, thread_name_prefix="paceline-predict") as executor:
        endpoints = Endpoints(models, plan.batch, executor, max_nbytes=plan.max_body_nbytes)

        async def until_ready() -> None:
            while not models.is_ready:  # noqa: ASYNC110  # a follower's thread makes them ready
                await asyncio.sleep(_LOOK_S)

        try:
            await answer_calls(reader, writer, endpoints, until_ready)
        finally:
            writer.close()
    logging.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
