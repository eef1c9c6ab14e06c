"""Adds one worker to a running run, in the foreground of a terminal."""

from __future__ import annotations

import json
import queue
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from paceline.engines.output import Exit, Line, Stream
from paceline.engines.plan import RunPlan
from paceline.engines.processes import Children
from paceline.engines.restart_policy import Again, RestartPolicy
from paceline.engines.sigterm import Notices
from paceline.errors import DeadlineError, TransportError, UsageError
from paceline.runtime.exit_codes import EXIT_DONE, EXIT_LEFT, EXIT_LOST, EXIT_SCRIPT, how
from paceline.runtime.observing import observing
from paceline.runtime.roles import WORKER
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import next_start

_POLL_S = 0.1
_PARTING_S = 5.0  # seconds for which a worker may continue after its run has ended: its script may save a result


class JoinedWorker:
    """One worker that `paceline join` adds.

    `show` prints a line of the script, and is told whether it is an error; `say` prints a message of this process.
    """

    def __init__(self, plan: RunPlan, show: Callable[[str, bool], None], say: Callable[[str], None]) -> None:
        self.plan = plan
        self.dir = RunDir(plan.run)
        self.name = f"{WORKER.name}-j{secrets.token_hex(2)}"
        self._show = show
        self._say = say
        self._children = Children(self.dir)
        self._policy = RestartPolicy(plan.max_restarts)
        self._notices = Notices()
        self._passed_on = 0

    def run(self) -> int:
        """Run the worker until the job is done or this process gets a signal to end; returns the exit code.

        Raises:
            UsageError: the run does not exist, has ended, or does not answer.
            AuthenticationError: the coordinator has another token than the run directory.
        """
        self._check_running()
        self._say(f"{self.name} joins {self.plan.run}")
        try:
            with self._notices:
                return self._follow()
        finally:
            self._children.end(at_once=lambda role: True)

    def _check_running(self) -> None:
        self.dir.token()
        if self.dir.done:
            steps = json.loads(self.dir.summary_file.read_text()).get("steps")
            raise UsageError(f"the run in {self.plan.run} has ended after {steps} steps: no worker can join it")
        try:
            with observing(self.dir) as observer:
                status = observer.status(timeout_s=self.dir.answer_s)
        except DeadlineError:
            raise UsageError(
                f"no coordinator of {self.plan.run} answers: the run is not running. "
                f"`paceline run --resume {self.plan.run}` continues it"
            ) from None
        if status.failure is not None:
            raise UsageError(f"the run in {self.plan.run} has failed: {status.failure.reason}")

    def _answers(self) -> bool:
        with suppress(UsageError, TransportError):
            self._check_running()
            return True
        return False

    def _pass_on(self) -> None:
        """Send SIGTERM to the worker after the first signal to this process, and SIGKILL after the next ones."""
        while self._passed_on < self._notices.count:
            self._passed_on += 1
            for child in self._children.alive():
                if self._passed_on == 1:
                    child.signal(signal.SIGTERM)
                else:
                    child.signal(signal.SIGKILL, group=True)

    def _start(self) -> None:
        try:
            plan, start = self.plan, next_start(self.dir, self.name)
            self._children.start(plan.role_spec(self.name, start), cwd=plan.cwd, defaults=plan.env)
        except OSError as error:
            raise UsageError(
                f"the worker cannot be started: {error}. {self.plan.run} must be a run directory that you may write "
                "to, and the script's directory must exist on this machine"
            ) from None
        self._policy.started(self.name, start, time.monotonic())

    def _follow(self) -> int:
        self._start()
        over_at: float | None = None
        while True:
            self._pass_on()
            if over_at is None and self.dir.done:
                over_at = time.monotonic()
            if over_at is not None and time.monotonic() > over_at + _PARTING_S:
                self._say(f"the run in {self.plan.run} has ended")
                return EXIT_DONE
            with suppress(queue.Empty):
                match self._children.events.get(timeout=_POLL_S):
                    case Line(text=text, stream=stream):
                        self._show(text, stream is not Stream.OUT)
                    case Exit() as event:
                        code = self._exited(event)
                        if code is not None:
                            return code

    def _exited(self, event: Exit) -> int | None:
        code = event.code
        if code == EXIT_DONE:
            return EXIT_DONE
        self._report(event)
        if code == EXIT_LEFT or self._notices.count:
            self._say(f"{self.name} has left {self.plan.run}")
            return EXIT_DONE
        decision = self._policy.ended(self.name, code, time.monotonic())
        if code >= 0 and isinstance(decision, Again) and self._answers():
            self._say(f"{self.name} ended ({how(code)}): restarted")
            self._pause(decision.after_s)
            if self._notices.count:
                return EXIT_DONE
            self._start()
            return None
        if code == EXIT_LOST and self.dir.done:
            self._say(f"the run in {self.plan.run} has ended")
            return EXIT_DONE
        if code != EXIT_SCRIPT:
            self._say(f"{self.name} ended ({how(code)})")
        return EXIT_SCRIPT if code == EXIT_SCRIPT else EXIT_LOST

    def _pause(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while time.monotonic() < until and not self._notices.count:
            time.sleep(0.02)

    def _report(self, event: Exit) -> None:
        """Tell the coordinator that the worker has ended, so that it does not wait for missing heartbeats."""
        if self.dir.coordinator() is None:
            return
        with suppress(TransportError), observing(self.dir) as observer:
            observer.exited(event.name, event.start, event.code, timeout_s=1.0)
