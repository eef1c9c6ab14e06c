"""Starts the agents of a run as tasks of a Spark application. `ExecutorTasks` decides which tasks there are."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.core.hosts.executor_tasks import (
    JOIN_S,
    Cancel,
    ExecutorTasks,
    GiveUp,
    KillStart,
    Offer,
    Output,
    Release,
    Submit,
    Tell,
)
from paceline.engines.carriers.base import CarrierEvent, Wanted
from paceline.engines.carriers.spark_session import SparkApplication, first_cause, open_application
from paceline.engines.carriers.spark_task import carry
from paceline.engines.role_runner import HostLeaves, Note
from paceline.errors import ClusterLostError, UsageError
from paceline.runtime.rundir import RunDir

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_PARTING_S = 5.0


class SparkAgents:
    """One Spark job with one task for each agent, so that each can end alone and Spark knows what the run still wants.

    A thread of its own asks Spark for its executors and cancels tasks, so that the supervisor never waits for Java.
    """

    def __init__(self, master: str, run: RunDir) -> None:
        """Use the session that is there, or start an application at `master`.

        Raises:
            UsageError: the extra is missing, or there is no application to use.
        """
        self._group = f"paceline-{run.path.name}-{id(self):x}"
        self._log = run.logs / "spark.log"
        self._handler = signal.getsignal(signal.SIGINT)
        self._application = open_application(master, f"paceline {run.path.name}", self._log)
        self._says_master = not master and self._application.is_own
        self._tasks = ExecutorTasks("")
        self._address, self._token = "", b""
        self._cores = 0
        self._profile: Any = None
        self._offer: Offer | None = None
        self._problem = self._trouble = ""
        self._began_at: float | None = None
        self._ended: queue.SimpleQueue[tuple[int, int | None, str]] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: dict[int, threading.Thread] = {}
        self._looking: threading.Thread | None = None

    def own_address(self) -> str | None:
        """See `Carrier.own_address`: where executors reach the driver."""
        return self._application.address()

    def begin(self, address: str, token: bytes) -> None:
        """See `Carrier.begin`."""
        self._address, self._token = address, token
        self._tasks = ExecutorTasks(address)
        if threading.current_thread() is threading.main_thread():
            # A SparkContext cancels all jobs on Ctrl-C, which would end the agents before the last checkpoint.
            signal.signal(signal.SIGINT, self._handler if self._application.is_own else signal.default_int_handler)
        self._looking = threading.Thread(target=self._look_on, name="spark", daemon=True)
        self._looking.start()

    def coming(self, joined: Mapping[str, int]) -> int:
        """See `Carrier.coming`."""
        return self._tasks.coming(len(joined), time.monotonic())

    def tick(self, joined: Mapping[str, int], wanted: Wanted) -> list[CarrierEvent]:
        """See `Carrier.tick`.

        Raises:
            UsageError: no agent can be started, and the run cannot begin.
            ClusterLostError: the application has ended.
        """
        events: list[CarrierEvent] = []
        if self._says_master:
            self._says_master = False
            events.append(
                Note(f"uses Spark on this machine alone ({self._application.master}); --master names a cluster")
            )
        now = time.monotonic()
        outputs: list[Output] = []
        with contextlib.suppress(queue.Empty):
            while True:
                number, code, reason = self._ended.get_nowait()
                self._jobs.pop(number, None)
                outputs += self._tasks.ended(number, code, reason, now)
        if self._problem:
            raise ClusterLostError(f"the Spark application has ended: {self._problem}; see {self._log}")
        self._began_at = now if self._began_at is None else self._began_at
        if self._offer is None and now - self._began_at > JOIN_S:
            raise UsageError(
                f"Spark has not told its executors within {JOIN_S:.0f} s: {self._trouble}; see {self._log}"
            )
        if self._offer is not None:
            outputs += self._tasks.decide(joined, wanted, self._offer, now)
        for output in outputs:
            events += self._carry_out(output)
        return events

    def _carry_out(self, output: Output) -> list[CarrierEvent]:
        context = self._application.context
        match output:
            case Submit(number=number):
                self._submit(number)
            case Cancel(number=number):
                self._orders.put(lambda: context.cancelJobGroup(self._group_of(number)))
            case KillStart(start=start):
                reason = "a later start has taken its place"
                self._orders.put(lambda: context._jsc.sc().killTaskAttempt(start, True, reason))
            case Release(host=host):
                return [HostLeaves(host)]
            case Tell(text=text, warning=warning):
                return [Note(text, warning=warning)]
            case GiveUp(reason=reason):
                raise UsageError(reason)
        return []

    def _group_of(self, number: int) -> str:
        return f"{self._group}-{number}"

    # ------------------------------------------------------------ threads

    def _submit(self, number: int) -> None:
        from pyspark import InheritableThread

        job = InheritableThread(target=self._run_job, args=(number,), name=f"spark-{number}", daemon=True)
        self._jobs[number] = job
        job.start()

    def _run_job(self, number: int) -> None:
        """Run the job of one task, and tell how it ended."""
        context = self._application.context
        try:
            context.setJobGroup(self._group_of(number), f"Paceline agent {number}", interruptOnCancel=True)
            rows = context.parallelize([number], 1)
            if self._profile is not None:
                rows = rows.withResources(self._profile)
            task = functools.partial(carry, self._address, self._token, number)
            ((code, lines),) = rows.mapPartitions(task).collect()
            self._ended.put((number, code, _last_words(code, lines)))
        except Exception as error:  # of Java, of the network or of the task: all end this agent
            logger.info("task %d of Spark has ended", number, exc_info=True)
            reason = first_cause(str(error))
            if "No module named" in reason:
                reason += " on an executor: its Python, which PYSPARK_PYTHON names, needs the same Paceline and torch"
            self._ended.put((number, None, reason))

    def _look_on(self) -> None:
        """Carry out orders, and look at the executors once a second."""
        while True:
            try:
                order = self._orders.get(timeout=_LOOK_S)
            except queue.Empty:
                order = self._look
            if order is None:
                return
            try:
                order()
            except Exception as error:  # py4j has several kinds
                self._trouble = first_cause(str(error))
                logger.info("Spark does not answer", exc_info=True)
                if ending := self._application.ending():
                    self._problem = ending
                    return

    def _look(self) -> None:
        application = self._application
        if ending := application.ending():
            raise ConnectionError(ending)
        executors, least, active = application.executors()
        if not self._cores and (executors or application.is_elastic):
            self._cores, self._profile = _reserve(application, least)
        if self._cores or executors:
            most = application.most_executors
            self._offer = Offer(executors, self._cores, active, elastic=application.is_elastic, most=most)
        else:
            self._offer = Offer(0, 1, most=application.most_executors)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """See `Carrier.close`. Agents have ended with the run; tasks that are left are cancelled."""
        self._orders.put(None)
        if self._looking is not None:
            self._looking.join(_PARTING_S)
        with contextlib.suppress(Exception):  # an application that has ended has no tasks
            if not self._application.is_own:
                for number in list(self._jobs):
                    self._application.context.cancelJobGroup(self._group_of(number))
                deadline = time.monotonic() + _PARTING_S
                for job in self._jobs.values():
                    job.join(max(0.0, deadline - time.monotonic()))
        self._application.close()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handler)


def _reserve(application: SparkApplication, least: int) -> tuple[int, Any]:
    """The number of cores for a task that leaves no room for a second one on its executor, and how it gets them."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    default = int(application.conf("spark.task.cpus", "1"))
    cores = int(application.conf("spark.executor.cores") or default) if application.is_elastic else least
    if cores <= default or application.most_executors == 1:
        return max(cores, default), None
    return cores, ResourceProfileBuilder().require(TaskResourceRequests().cpus(cores)).build


def _last_words(code: int, lines: str) -> str:
    """What the user is told of an agent that has failed."""
    said = [line.removeprefix("paceline: ").strip() for line in lines.splitlines() if line.strip()]
    return said[-1] if said else f"exit code {code}"
