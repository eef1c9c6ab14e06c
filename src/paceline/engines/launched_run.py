"""A run that this process has launched: its supervisor in a thread, and the handle for the program."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import msgspec

from paceline.engines.actions import Outcome
from paceline.engines.run_options import in_python
from paceline.engines.runs import DONE, end_state
from paceline.engines.scaling import scale_run
from paceline.engines.sigterm import Terminated, terminable
from paceline.engines.stop_requests import Stopped, StopRequests
from paceline.engines.supervisor import Supervisor
from paceline.errors import RunError, RunStoppedError, UsageError
from paceline.messages.status import RunSummary, Status
from paceline.runtime.exit_codes import EXIT_CLOSED, EXIT_DONE, EXIT_INTERRUPTED, EXIT_TERMINATED

_EXIT_S = 60.0  # for a run to end at the end of the program; the system kills what is left
_STOPPED = (EXIT_CLOSED, EXIT_INTERRUPTED, EXIT_TERMINATED)


class Run:
    """A run that `paceline.launch` has started. It goes on until it is done, also if nobody keeps this object.

    At the end of this process a run that still runs is stopped as by `stop`. As a context manager it is stopped at the
    end of the block. All methods may be called in any thread.
    """

    def __init__(self, make: Callable[[], Supervisor], requests: StopRequests) -> None:
        """`make` makes the supervisor, which listens to `requests`, in its own thread. Raises what `make` raises."""
        self._made: Future[Supervisor] = Future()
        self._requests = requests
        self._ended = threading.Event()
        self._outcome = Outcome()
        self._error: BaseException | None = None
        self._process = os.getpid()
        # The system kills what this thread starts when the thread ends. So everything is made and started in it, not in
        # the thread of the caller. A daemon: the interpreter does not wait for it, and reaches `_stop_all`.
        self._thread = threading.Thread(target=self._supervise, args=(make,), name="paceline", daemon=True)
        _begin(self)
        self._thread.start()
        try:
            self._supervisor = self._made.result()
        except KeyboardInterrupt:
            requests.ask(KeyboardInterrupt, at_once=True)
            raise
        except BaseException:
            self._thread.join()
            raise

    def _supervise(self, make: Callable[[], Supervisor]) -> None:
        try:
            supervisor = make()
            _begin(self)
            self._made.set_result(supervisor)
            self._outcome = supervisor.run()
        except BaseException as error:
            self._error = error
            if not self._made.done():
                self._made.set_exception(error)
                return
            with suppress(OSError):
                supervisor.screen.note(f"the run in {supervisor.dir.path} has ended: {error}", warning=True)
        finally:
            _end(self)
            self._ended.set()

    @property
    def directory(self) -> Path:
        """The run directory, as an absolute path."""
        return self._supervisor.dir.path

    def status(self) -> Status:
        """What the run is doing, at most a second ago, or how it stood when it ended. Never waits.

        The `state` is that of the job while it runs, then done, failed or interrupted.
        """
        known = self._supervisor.status
        known = msgspec.structs.replace(known, run=known.run or str(self.directory))
        if not self._ended.is_set():
            return known
        summary = self._outcome.summary
        if summary is not None:
            return msgspec.structs.replace(known, state=DONE, step=summary.steps, unfinished=False)
        return msgspec.structs.replace(known, state=end_state({"code": self._outcome.code}))

    def scale(self, *, workers: int | None = None, servers: int | None = None, samplers: int | None = None) -> None:
        """Change how many workers, servers and samplers the run has, as `paceline scale` does. Does not wait for them.

        Raises:
            UsageError: a number is not allowed, or the run does not run (yet).
        """
        if self._ended.is_set():
            raise UsageError(f"the run in {self.directory} has ended and cannot be scaled")
        try:
            scale_run(self._supervisor.dir, workers, servers, samplers)
        except UsageError as error:
            raise UsageError(in_python(str(error))) from None

    def stop(self, *, save: bool = True) -> None:
        """End the run, and wait until all of its processes have ended. Does nothing if it has ended.

        With `save` it waits a few seconds for a checkpoint of the last step, as after Ctrl-C; without, it ends at once.
        """
        self._end_by(Stopped, at_once=not save)
        self._thread.join()

    def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until the run has ended; returns its summary.

        Ctrl-C, and SIGTERM if this program does not handle it, end the run with a last checkpoint and then this
        program; another one ends the run at once.

        Raises:
            RunError: the run ended and is not done. A run that was stopped raises RunStoppedError.
            TimeoutError: the run still runs after `timeout` seconds. It goes on.
            PacelineError: the run could not be started.
        """
        try:
            with _terminable():
                has_ended = self._ended.wait(timeout)
        except KeyboardInterrupt as error:
            self._end_by(Terminated if isinstance(error, Terminated) else KeyboardInterrupt)
            _end_program(error)
        if not has_ended:
            raise TimeoutError(f"the run in {self.directory} has not ended within {timeout:g} s; it goes on")
        return self._result()

    def _result(self) -> RunSummary:
        self._thread.join()
        if type(self._error) is UsageError:
            raise UsageError(in_python(str(self._error))) from None
        if self._error is not None:
            raise self._error
        outcome = self._outcome
        if outcome.code == EXIT_DONE and outcome.summary is not None:
            return outcome.summary
        kind = RunStoppedError if outcome.code in _STOPPED else RunError
        raise kind(outcome.code, outcome.reason, outcome.trace, outcome.advice)

    def _end_by(self, kind: type[KeyboardInterrupt], *, at_once: bool = False, timeout_s: float | None = None) -> None:
        """Ask the supervisor to end the run, and wait for it, for up to `timeout_s`.

        Ctrl-C meanwhile ends run and program at once. One more does not wait for the supervisor, which may hang: then
        the system kills the processes of the run together with the program.
        """
        interruptions: list[KeyboardInterrupt] = []
        while not self._ended.is_set() and not self._is_of_parent and len(interruptions) < 2:
            try:
                with _terminable():
                    self._requests.ask(kind, at_once=at_once or bool(interruptions))
                    self._ended.wait(timeout_s)
                break
            except KeyboardInterrupt as error:
                interruptions.append(error)
        if interruptions:
            _end(self)  # at the end of the program nobody waits for it once more
            _end_program(interruptions[-1])

    @property
    def _is_of_parent(self) -> bool:
        """Whether this process is only a fork of the one that runs it."""
        return os.getpid() != self._process

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        status = self.status()
        step = "" if status.step is None else f", step {status.step}" + f" of {status.end_step}" * bool(status.end_step)
        return f"<paceline.Run {self.directory}: {status.state}{step}>"


def _end_program(error: KeyboardInterrupt) -> NoReturn:
    """Go on with the end of this program: by its exit code after SIGTERM, otherwise as Python does after Ctrl-C."""
    if isinstance(error, Terminated):
        raise SystemExit(EXIT_TERMINATED) from None
    raise error


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, unless the program has a handler of its own; and Ctrl-C `KeyboardInterrupt`."""
    before = signal.getsignal(signal.SIGINT)
    # A SparkContext cancels all jobs on Ctrl-C, which would end the agents before the last checkpoint.
    is_sparks = str(getattr(before, "__module__", "")).startswith("pyspark.")
    is_main = threading.current_thread() is threading.main_thread()
    with ExitStack() as undo:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            undo.enter_context(terminable())
        if is_sparks and is_main:
            undo.callback(signal.signal, signal.SIGINT, before)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


# ---------------------------------------------------------------- the end of this process

_running: set[Run] = set()


def _begin(run: Run) -> None:
    _running.add(run)
    # Again each time: libraries that carry the run, and were loaded before, must end after it.
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)


def _end(run: Run) -> None:
    _running.discard(run)


def _stop_all() -> None:
    """Stop the runs that nobody has waited for."""
    runs = [run for run in _running if not run._is_of_parent]
    for run in runs:
        run._requests.ask()  # all of them at the same time
    for run in runs:
        with suppress(KeyboardInterrupt, SystemExit):  # this program ends anyway
            run._end_by(Stopped, timeout_s=_EXIT_S)
