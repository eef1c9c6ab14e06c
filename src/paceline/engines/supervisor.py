"""Runs all processes of a run: starts them, follows them, and collects the summary.

`Decisions` and `Conclusion` decide what to do; this module does it.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import msgspec

from paceline.config.load import timeout_s
from paceline.engines.actions import (
    Action,
    Dismiss,
    Dump,
    End,
    Finish,
    KeepSize,
    Lost,
    Outcome,
    Rescale,
    Start,
    Tell,
    Terminate,
)
from paceline.engines.announcements import Announcements, fork_server_ended
from paceline.engines.conclusion import Conclusion, explained
from paceline.engines.coordinator_client import CoordinatorClient
from paceline.engines.decisions import Decisions
from paceline.engines.fingerprint import fingerprint
from paceline.engines.hang_detection import HangDetection, taking_part
from paceline.engines.host_news import HostNews
from paceline.engines.interruption import Interruption, interrupted_by
from paceline.engines.output import Exit, Line
from paceline.engines.place import checkpoints_note
from paceline.engines.plan import RunPlan as RunPlan
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.role_runner import RunnerEvent
from paceline.engines.runners import make_runner
from paceline.engines.screen import Screen, ScreenClosed
from paceline.engines.sigterm import terminable
from paceline.engines.standing import standing
from paceline.engines.stop_requests import StopRequests
from paceline.engines.trace_merge import draw
from paceline.errors import ClusterLostError, StateError, UsageError
from paceline.messages.status import FailureStatus, RunSummary, Status
from paceline.runtime.exit_codes import (
    EXIT_CLOSED,
    EXIT_DEPOSED,
    EXIT_DONE,
    EXIT_LOG,
    EXIT_LOST,
    EXIT_SCRIPT,
    EXIT_USAGE,
)
from paceline.runtime.roles import COORDINATOR, WORKER, role_of
from paceline.runtime.rundir import ENDED, RunDir, begin_run
from paceline.runtime.starts import last_starts, next_start

logger = logging.getLogger(__name__)

_WAIT_S = 0.1
_BUSY_WAIT_S = 0.02
_BURST = 1000
_LEAST_HANG_S = 5.0
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class Supervisor:
    """Runs one run, from its start to its summary. Call `run` only once, in any thread; others may ask it to `stop`."""

    def __init__(self, plan: RunPlan, screen: Screen, stop: StopRequests | None = None) -> None:
        plan.check_environment()
        if plan.fingerprint is None:
            plan = replace(plan, fingerprint=fingerprint(plan.script, plan.code_root))
        self.plan = plan
        self.screen = screen
        self._stop = StopRequests() if stop is None else stop
        # Half of PACELINE_TIMEOUT_S, so that a hanging process is killed before the other roles give up on it.
        grace_s = timeout_s({**plan.env, **os.environ})
        self._hangs = HangDetection(max(_LEAST_HANG_S, grace_s / 2))
        self._announcements = Announcements(screen)
        is_new = plan.resume is None and not plan.adopt
        self.dir = RunDir.create(plan.run, plan.token_file) if is_new else RunDir(plan.run)
        self.runner = make_runner(plan, self.dir)
        self._client = CoordinatorClient(self.dir.coordinator, self.dir.token())
        self._hint = ResumeHint(self.dir.path, plan.checkpoint_every, plan.resume or "")
        decide = functools.partial(Decisions, resumed=plan.resume is not None, grace_s=grace_s, samplers=plan.samplers)
        self._decisions = decide(plan.workers, plan.servers, plan.replicas, plan.max_restarts, self._hint)
        self._conclusion = Conclusion(self._decisions.workers, self._hint)
        self._interruption = Interruption(plan, self.runner, self._client, self._hint, screen)
        self._hosts = HostNews(plan.hosts, plan.replicas, self.runner, self._client, self._decisions)
        self._resume = plan.resume
        self._next_look = 0.0
        self._news = False

    @property
    def status(self) -> Status:
        """The newest status of the run."""
        return self._client.status

    def run(self) -> Outcome:
        """Start all processes, follow them until the run ends, and end all of them. Returns how the run ended.

        Raises:
            UsageError: another launcher is running this run.
        """
        outcome = Outcome(EXIT_LOST, "the launcher itself failed")
        is_ours = False
        try:
            with self.dir.launching(), terminable():
                is_ours = True
                try:
                    begin_run(self.dir)
                    self._start_all()
                    outcome = self._follow()
                    outcome = explained(outcome, self._announcements.last_words(outcome.ended))
                except ScreenClosed as error:
                    outcome = self._interruption.end(EXIT_CLOSED, str(error), self._drain_checked)
                except KeyboardInterrupt as error:
                    outcome = self._interruption.end(*interrupted_by(error), self._drain_checked)
                except StateError as error:
                    outcome = self._cut_short(str(error), on_disk=True)
                except ClusterLostError as error:
                    outcome = self._cut_short(str(error))
                except UsageError as error:
                    outcome = Outcome(EXIT_USAGE, str(error))
                    raise
                except OSError as error:
                    if error.errno not in _OF_DISKS:
                        raise
                    reason = f"cannot write {error.filename or self.dir.path}: {error.strerror}"
                    outcome = self._cut_short(reason, on_disk=True)
                finally:
                    self._end(outcome)
                    if self.plan.trace is not None:
                        draw(self.dir.trace, self.plan.trace, self.screen)
        finally:
            if not is_ours:
                self.runner.end(0.0)
            self._client.close()
        with suppress(ScreenClosed):
            self._announcements.ended(outcome)
        return outcome

    # ------------------------------------------------------------ starting and ending

    def _start_all(self) -> None:
        if self.plan.resume is not None:
            self.dir.coordinator_file.unlink(missing_ok=True)  # it has the address of a coordinator that has ended
        self.dir.logs.mkdir(exist_ok=True)
        self.plan.save()
        self.runner.warm()
        if self.plan.hosts is not None and (note := checkpoints_note(self.plan)):
            self.screen.note(note, warning=True)
        adopted = self.runner.gather(self.screen.note, self._stop.check)
        self._decisions.resize(*self._hosts.size())
        self.plan = replace(self.plan, workers=self._decisions.workers.target, servers=self._decisions.servers.target)
        if self.plan.adopt:
            self._hosts.adopted(last_starts(self.dir), adopted)
        for name, start in adopted.items():
            self._decisions.started(name, start, time.monotonic())
        for name in self._decisions.first(adopted):
            self._start(name)

    def _start(self, name: str) -> None:
        """Start the process called `name`, for the first time or again."""
        # `self._resume` names the checkpoint to begin from until a coordinator has answered: one that ended before
        # that has perhaps not read the checkpoint. Then it is None: a restarted coordinator continues the log.
        if not self.runner.has_room(name):
            self._decisions.wait(name, time.monotonic())
            return
        plan, start, resume = self.plan, next_start(self.dir, name), self._resume
        self.runner.start(name, start, lambda place: plan.role_spec(name, start, resume=resume, place=place))
        logger.info("started %s: start %d", name, start)
        self._decisions.started(name, start, time.monotonic())
        self._announcements.started(name)

    def _keep_fork_server(self) -> None:
        """Start the fork server again if it has ended. Never waits for it."""
        now, policy = time.monotonic(), self._decisions.fork_server
        if (end := self.runner.fork_server_ended()) is not None:
            decision = policy.ended(now, was_ready=end.was_ready, replaced=end.replaced)
            self._carry_out([fork_server_ended(end, decision)])
        if policy.due(now):
            self.runner.warm()

    def _cut_short(self, reason: str, *, on_disk: bool = False) -> Outcome:
        """How the run ends by something that it needs: its cluster, or (`on_disk`) its directory."""
        advice = self._hint.after_end(self._client.status if self._client.heard else None)
        return Outcome(EXIT_LOST, reason, advice=f"make room on the disk of {self.dir.path}; " * on_disk + advice)

    def _end(self, outcome: Outcome) -> None:
        failed = outcome.code != EXIT_DONE
        while True:
            try:
                # After a failure, kill workers at once: SIGTERM would make them give back leases, which nobody needs.
                self.runner.end(at_once=lambda role: failed and role.scripted)
                self._drain()
                if failed:
                    end = {"state": ENDED, "code": outcome.code, "reason": outcome.reason, "advice": outcome.advice}
                    last = {"step": self._client.status.step, "end_step": self._client.status.end_step}
                    self.dir.write_end(end | last | standing(self.dir))
                break
            except StateError as error:
                self.screen.note(f"`paceline status` will not tell how the run ended: {error}", warning=True)
                break
            except (KeyboardInterrupt, ScreenClosed):
                continue  # a second Ctrl-C must not leave children running

    # ------------------------------------------------------------ following

    def _follow(self) -> Outcome:
        while True:
            for event in self._events():
                if isinstance(event, Line):
                    self._line(event)
                elif isinstance(event, Exit):
                    if (outcome := self._exited(event)) is not None:
                        return outcome
                else:
                    self._carry_out(self._hosts.handle(event))
            self._keep_fork_server()
            for name in self._decisions.due(time.monotonic()):
                self._start(name)
            if self._client.pump():
                self._looked()
            self._end_hanging()
            failure = self._client.status.failure
            if failure is not None:
                return self._failed(failure)
            if not self._decisions.workers.gone:
                self._conclusion.reset()
                continue
            outcome = self._conclude()
            if outcome is not None:
                return outcome

    def _events(self) -> Iterator[RunnerEvent]:
        """The events of the processes so far. Waits a moment for the first event, and not for the others."""
        self._stop.check()
        wait_s = _BUSY_WAIT_S if self._client.busy or self._decisions.waiting else _WAIT_S
        for number in range(_BURST):
            event = self.runner.next_event(0.0 if number else wait_s)
            if event is None:
                return
            yield event

    def _line(self, line: Line) -> None:
        scripted = role_of(line.name).scripted
        if scripted and not self._announcements.begun and time.monotonic() >= self._next_look:
            # Ask for the status first, so that the headline is shown before the lines of the script. Do not wait for a
            # coordinator that has died.
            heard = bool(self.runner.alive(COORDINATOR)) and self._look(0.1 if self._client.heard else 0.5)
            self._next_look = time.monotonic() + (_BUSY_WAIT_S if heard else 1.0)
        self._announcements.line(line)

    def _drain(self) -> None:
        while (event := self.runner.next_event(0.0)) is not None:
            if isinstance(event, Line):
                self._line(event)

    def _drain_checked(self) -> None:
        self._stop.check()
        self._drain()

    def _look(self, timeout_s: float = 0.5) -> bool:
        """Ask for the status, wait for it and act on it; False if none came within `timeout_s`."""
        heard = self._client.look(timeout_s)
        if heard:
            self._looked()
        return heard

    def _looked(self) -> None:
        """Show the new status, and carry out what follows from it."""
        self._news, self._resume = True, None
        status = self._client.status
        self._announcements.status(status)
        self.runner.saw(taking_part(status))
        resizable = self._client.settled and not self._client.finishing
        self._carry_out(self._hosts.saw(status, time.monotonic(), resizable=resizable))
        self._carry_out(self._decisions.saw(status, time.monotonic(), resizable=resizable))
        self.runner.want(*self._decisions.wanted)

    def _end_hanging(self) -> None:
        """Kill the processes that run but do not answer: they are then started again like any that died."""
        news, self._news = self._news, False
        leaving = self._decisions.servers.leaving | self._decisions.samplers.leaving
        alive = {child.name: child.start for child in self.runner.alive() if child.name not in leaving}
        seen = taking_part(self._client.status) if news else None
        for name, silent_s in self._hangs.see(time.monotonic(), alive, seen).items():
            self.screen.note(f"{name} has not answered for {silent_s:.0f} s: it is killed", warning=True)
            self.runner.signal(name, signal.SIGKILL, group=True)

    # ------------------------------------------------------------ carrying out

    def _carry_out(self, actions: Iterable[Action]) -> Outcome | None:
        """Carry out the actions, in their order. Returns how the run ended, or None if it has not."""
        outcome = None
        for action in actions:
            match action:
                case Tell(text=text, warning=warning):
                    self.screen.note(text, warning=warning)
                case Start(name=name):
                    self._start(name)
                case Terminate(name=name) | Dump(name=name):
                    self.runner.signal(name, signal.SIGUSR1 if isinstance(action, Dump) else signal.SIGTERM)
                case Dismiss(name=name):
                    self.runner.signal(name, signal.SIGKILL, group=True)
                case Rescale():
                    self._client.scale(action.workers, action.servers)
                case KeepSize(workers=workers, servers=servers, samplers=samplers):
                    replace(self.plan, workers=workers, servers=servers, samplers=samplers).save()
                case Lost():
                    outcome = self._lost(action)
                case Finish():
                    outcome = self._finish()
                case End():
                    outcome = action.outcome
        return outcome

    def _exited(self, event: Exit) -> Outcome | None:
        name, code, role = event.name, event.code, role_of(event.name)
        logger.info("%s has ended: start %d, code %d", name, event.start, code)
        if role.reported:
            self._client.report(name, event.start, code)
            self._news |= self._client.pump()
        if (expected := self._decisions.expected(name, code)) is not None:
            return self._carry_out([expected])
        if self._decisions.needs_status(role, code):
            self._look()
        return self._carry_out(self._decisions.exited(name, code, time.monotonic(), self._client.status))

    def _lost(self, lost: Lost) -> Outcome | None:
        self._look()
        if self._client.status.failure is not None:
            return None  # the job has failed, and the status says why
        if lost.code in (EXIT_LOG, EXIT_DEPOSED) and (said := self._announcements.last_words(lost.name)):
            lost = replace(lost, reason=said.splitlines()[-1])
        return self._carry_out(self._decisions.lost(lost, self._client.status))

    def _failed(self, failure: FailureStatus) -> Outcome:
        """The outcome of a failed job. First shows what the workers still print, so that the traceback comes last."""
        deadline = time.monotonic() + 1.0
        while self.runner.alive(WORKER) and time.monotonic() < deadline:
            event = self.runner.next_event(0.05)
            if isinstance(event, Line):
                self._line(event)
        if failure.kind == "script":
            advice = f"{self._hint.after_error(self._client.status)}; its output is in {self.dir.logs}"
            return Outcome(EXIT_SCRIPT, failure.reason, failure.trace, advice)
        return Outcome(EXIT_LOST, failure.reason, failure.trace, f"each role's output is in {self.dir.logs}")

    # ------------------------------------------------------------ the end

    def _conclude(self) -> Outcome | None:
        """Decide how the run ends, now that this launcher has no worker left. Returns None while that is not clear."""
        if not self._conclusion.begun:
            if not self._client.settled or not self._look():
                return None  # the coordinator does not answer: it will be restarted, or its loss will end the run
            self._conclusion.begin(time.monotonic())
        if self._client.status.unfinished:
            self._client.go_on()  # a rewind has undone steps since the summary was asked for
        return self._carry_out(self._conclusion.decide(self._client.status, time.monotonic()))

    def _finish(self) -> Outcome | None:
        """Ask for the summary of the job, which has ended. Returns None until the summary has come."""
        summary = self._client.finish()
        if summary is None:
            return None
        if summary.state != "done":
            self._client.go_on()
            self._look()
        outcome = self._carry_out(self._conclusion.summarized(summary, self._client.status))
        if outcome is not None and outcome.code == EXIT_DONE:
            return replace(outcome, summary=self._summarize(summary))
        return outcome

    def _summarize(self, summary: RunSummary) -> RunSummary:
        if self._client.status.headline is None:
            self.screen.note("nothing was trained: the script never looped over job.batches(...)", warning=True)
        summary = msgspec.structs.replace(summary, restarts=self._decisions.restarts)
        text = json.dumps(msgspec.to_builtins(summary), indent=2) + "\n"
        from paceline.engines.report_page import finish_and_report

        finish_and_report(self.dir, text, self.plan.summary)
        self._drain()
        with suppress(ScreenClosed):  # the run is complete, and the directory has the summary
            self.screen.summary(summary)
        return summary
