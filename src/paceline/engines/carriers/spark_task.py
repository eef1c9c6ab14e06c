"""What a Spark task does: it carries an agent. Runs in the Python worker of an executor."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from paceline.core.hosts.executor_tasks import DUPLICATE, host_name
from paceline.engines.carriers.base import agent_words
from paceline.engines.carriers.carried_agent import CarriedAgent
from paceline.runtime.exit_codes import EXIT_DONE

SET_BY_SPARK = (
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "SPARK_",
    "PYSPARK_",
    "_PYSPARK_",
    "PYTHON_WORKER_",
    "PYTHON_DAEMON_",
)
"""How the names of variables begin that Spark sets for its Python processes: the run decides about threads."""

_CANCEL_S = 30.0


def carry(address: str, token: bytes, number: int, rows: Iterable[object]) -> list[tuple[int, str]]:
    """Carry an agent of the supervisor at `address` in task `number`; returns its exit code and its last lines.

    After an agent that has left, the task waits until the driver ends it: Spark takes the task's own end as that of all
    its starts, and a later one may have taken its place.
    """
    from pyspark import SparkFiles, TaskContext

    context = TaskContext.get()
    assert context is not None
    with _only_task(SparkFiles.getRootDirectory()) as is_only:
        if not is_only:
            return [(DUPLICATE, "")]
        name = host_name(number, context.taskAttemptId())
        words = agent_words(address, name, cores=context.cpus())
        ended = CarriedAgent(words, token.hex(), agent_environment(os.environ)).wait()
    assert ended is not None
    if ended[0] == EXIT_DONE:
        time.sleep(_CANCEL_S)
    return [ended]


def agent_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment `env` without what Spark sets for its own Python processes."""
    return {name: value for name, value in env.items() if not name.startswith(SET_BY_SPARK)}


@contextmanager
def _only_task(folder: str) -> Iterator[bool]:
    """Whether no other task of this executor, whose own folder is `folder`, carries an agent during the block."""
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(held)
