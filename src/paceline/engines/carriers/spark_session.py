"""The Spark application of a run: the session that is there, or one that is started for the run."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.runtime.exit_codes import how

_DIAL_S = 5.0
_STOP_S = 20.0
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_LOCAL = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*]")


class SparkApplication:
    """A SparkContext. One that was started for the run ends with `close`; the user's goes on."""

    def __init__(self, context: Any, process: subprocess.Popen[bytes] | None, *, is_own: bool) -> None:
        self.context = context
        self.is_own = is_own
        self._process = process
        self._id = str(context.applicationId)
        self._conf = dict(context.getConf().getAll())

    @property
    def master(self) -> str:
        """The address of the cluster."""
        return str(self.context.master)

    def conf(self, name: str, default: str = "") -> str:
        """A setting of the application."""
        return str(self._conf.get(name, default))

    @property
    def is_elastic(self) -> bool:
        """Whether Spark brings executors for tasks that wait, and takes idle ones away."""
        return self.conf("spark.dynamicAllocation.enabled") == "true" and not self.master.startswith("local[")

    @property
    def most_executors(self) -> int | None:
        """How many executors there can ever be; None for no known limit."""
        if found := _LOCAL_CLUSTER.fullmatch(self.master):
            return int(found[1])
        if self.master == "local" or self.master.startswith("local["):
            return 1
        most = self.conf("spark.dynamicAllocation.maxExecutors") if self.is_elastic else ""
        return int(most) if most.isdigit() and int(most) < (1 << 31) - 1 else None

    def executors(self) -> tuple[int, int, int]:
        """The number of executors, the least number of cores that one has, and on how many tasks run.

        Raises:
            Py4JError: the application does not answer.
        """
        listed = self.context._jsc.sc().statusStore().executorList(True)
        found = [listed.apply(position) for position in range(listed.size())]
        found = [executor for executor in found if executor.totalCores() > 0]  # a driver of a cluster has none
        cores = min((int(executor.totalCores()) for executor in found), default=1)
        return len(found), cores, sum(executor.activeTasks() > 0 for executor in found)

    def ending(self) -> str:
        """How the application was ended, by the cluster or by a loss of its Java process; "" if it was not."""
        if self._process is not None and (code := self._process.poll()) is not None:
            return f"its Java process has ended ({how(code)})"
        try:
            return "it was stopped" if self.context._jsc is None or self.context._jsc.sc().isStopped() else ""
        except Exception:  # py4j has several kinds
            return "its Java process does not answer"

    def close(self) -> None:
        """End the application, unless it is the user's. Does not wait for a Java process that does not answer."""
        if not self.is_own:
            return
        stopping = threading.Thread(target=self._stop, daemon=True)
        stopping.start()
        stopping.join(_STOP_S)
        if self._process is not None:
            _end(self._process)
        if self.master.startswith("local-cluster["):  # Spark leaves the folders of its executors below its own home
            shutil.rmtree(Path(_spark_home()) / "work" / self._id, ignore_errors=True)

    def _stop(self) -> None:
        with contextlib.suppress(Exception):  # whatever it was, the Java process is ended next
            self.context.stop()
            if self._process is not None:
                gateway, type(self.context)._gateway, type(self.context)._jvm = self.context._gateway, None, None
                gateway.shutdown()

    def address(self) -> str | None:
        """The IP address of this machine that executors use; None if it has none."""
        try:
            return socket.gethostbyname(self.conf("spark.driver.host"))
        except OSError:
            return None


def open_application(master: str, name: str, log: Path) -> SparkApplication:
    """Use the session that is there, or start an application called `name` at `master`; Java's lines go to `log`.

    Raises:
        UsageError: the extra is missing, the session has another master, or no application can be started.
    """
    try:
        from pyspark import SparkContext
    except ImportError:
        raise UsageError("--engine spark needs pyspark: pip install 'paceline[spark]'") from None
    if master.startswith("sc://") or "SPARK_REMOTE" in os.environ:
        raise UsageError(
            "--engine spark: Spark Connect cannot carry agents, since it has no SparkContext: give --master with the "
            "address of the cluster itself, and unset SPARK_REMOTE"
        )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it shows tracebacks of its own when Java has ended
    active = SparkContext._active_spark_context
    is_submitted = active is None and "PYSPARK_GATEWAY_PORT" in os.environ
    if active is not None:
        application = SparkApplication(active, None, is_own=False)
    else:
        application = _submitted(name) if is_submitted else _started(master, name, log)
    if master and application.master != master:
        application.close()
        raise UsageError(
            f"--master {master}: this process has a Spark session with the master {application.master} already; leave "
            "the option out to use it, or stop that session"
        )
    if application.is_elastic and not application.conf("spark.executor.cores") and "spark://" in application.master:
        application.close()
        raise UsageError(
            "spark.dynamicAllocation.enabled: set spark.executor.cores, too, so that an executor has a known size"
        )
    return application


def _submitted(name: str) -> SparkApplication:
    """The application of ``spark-submit``, which has started this process."""
    from pyspark import SparkConf, SparkContext

    with _keeping_sigint():
        conf = SparkConf()
        conf.setIfMissing("spark.app.name", name)
        conf.setIfMissing("spark.log.level", "ERROR")  # Java prints to this terminal
        return SparkApplication(SparkContext(conf=conf), None, is_own=True)


def _started(master: str, name: str, log: Path) -> SparkApplication:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    master = master or "local[*]"
    check_answers(master)
    conf = SparkConf(loadDefaults=False)
    for key, value in settings(master, name).items():
        conf.set(key, value)
    log.parent.mkdir(parents=True, exist_ok=True)
    gateway = None
    try:
        with log.open("ab") as file, _environment(master), _keeping_sigint():
            gateway = launch_gateway(conf, {"stdout": file, "stderr": file})
            context = SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, PySparkException, OSError, ValueError) as error:
        _abandon(gateway)
        raise UsageError(
            f"no Spark application can be started at {master}: {first_cause(str(error))}; see {log}"
        ) from None
    except BaseException:
        _abandon(gateway)
        raise
    return SparkApplication(context, gateway.proc, is_own=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Java by the end of its standard input, or after a while by a signal."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout=_STOP_S / 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _abandon(gateway: Any) -> None:
    """End the Java process of an application that could not be started."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None and gateway.proc is not None:
        gateway.proc.kill()
        gateway.proc.wait()


def _spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def settings(master: str, name: str) -> dict[str, str]:
    """The settings of an application that is started for a run. Those in spark-defaults.conf are overridden by these.

    A task gets all cores of its executor, as far as they are known: an executor carries one agent.
    """
    found = {"spark.master": master, "spark.app.name": name, "spark.ui.showConsoleProgress": "false"}
    found["spark.ui.enabled"] = "false"
    if is_here(master):
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        found |= {"spark.task.cpus": cluster[2], "spark.executor.cores": cluster[2]}
        found["spark.executor.memory"] = f"{cluster[3]}m"
    elif local := _LOCAL.fullmatch(master):
        found["spark.task.cpus"] = str(os.cpu_count() or 1) if local[1] == "*" else local[1] or "1"
    return found


def is_here(master: str) -> bool:
    """Whether the cluster is on this machine."""
    if not master.startswith("spark://"):
        return master == "local" or master.startswith(("local[", "local-cluster["))
    return all(host in _LOOPBACK for host, _ in _masters(master))


def check_answers(master: str) -> None:
    """Check that a standalone master answers at its address, or one of several: Spark itself tries for a minute.

    Raises:
        UsageError: nobody answers there, or the address has another form.
    """
    if not master.startswith("spark://"):
        return
    problems = []
    for host, port in _masters(master):
        try:
            socket.create_connection((host.strip("[]"), port), timeout=_DIAL_S).close()
            return
        except OSError as error:
            problems.append(f"{host}:{port}: {error.strerror or error}")
    raise UsageError(
        f"--master {master}: nobody answers there ({'; '.join(problems)}), tried for {_DIAL_S:.0f} s: start the "
        "master, or correct the address"
    )


def _masters(master: str) -> list[tuple[str, int]]:
    found = []
    for part in master.removeprefix("spark://").split(","):
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--master {master}: a standalone master is spark://HOST:PORT")
        found.append((host, int(port)))
    return found


@contextmanager
def _environment(master: str) -> Iterator[None]:
    """Set what Java reads from the environment. Without PYSPARK_PYTHON, executors use another Python than this one."""
    changes = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable}
    if is_here(master):
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    before: Mapping[str, str | None] = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _keeping_sigint() -> Iterator[None]:
    """Undo the handler that a new SparkContext sets for Ctrl-C: it cancels the tasks before the last checkpoint."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def first_cause(text: str) -> str:
    """The line of an error of Spark that says most: the innermost Python error, or else the first cause of Java."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"([\w.]+\.)?\w*(Error|Exception)\b.*: ", line) and "java" not in line]
    python = [line for line in python if "Py4JJavaError" not in line and "org.apache.spark" not in line]
    causes = [line.partition(":")[2].strip() for line in lines if line.startswith("Caused by:")]
    java = [line.partition(":")[2].strip() or line for line in lines if line.startswith((": ", "org.apache", "java."))]
    return (python or causes or java or lines or ["no reason was given"])[-1 if python else 0][:500]
