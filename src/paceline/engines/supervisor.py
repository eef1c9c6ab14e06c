"""All roles on this machine: start them, watch them, start them again, collect the summary."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from paceline.config.load import timeout_s
from paceline.engines.announcements import Chronicle, enough
from paceline.engines.coordinator_client import Liaison
from paceline.engines.hang_detection import Hanging, taking_part
from paceline.engines.plan import RunPlan as RunPlan
from paceline.engines.processes import Children, Exit, Line
from paceline.engines.restart_policy import Again, Decision, GiveUp, RestartPolicy, Stay, role_of
from paceline.engines.screen import Screen
from paceline.engines.servers import Fleet
from paceline.engines.sigterm import Terminated, terminable
from paceline.engines.trace_merge import draw
from paceline.engines.workers import Crew
from paceline.messages.status import FailureStatus, RunSummary, Status
from paceline.runtime.exit_codes import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_LEFT,
    EXIT_LOST,
    EXIT_SCRIPT,
    EXIT_TERMINATED,
)
from paceline.runtime.rundir import RunDir

_WAIT_S = 0.1
_BUSY_WAIT_S = 0.02
_BURST = 1000
_LEAST_HANG_S = 5.0
_PARTING_S = 5.0  # how long a run that is over waits for workers that were not started by this engine


@dataclass(slots=True)
class _Outcome:
    code: int
    reason: str = ""
    trace: str = ""
    advice: str = ""


class LocalRun:
    """One run on this machine, from start to summary. `run` is called once."""

    def __init__(self, plan: RunPlan, screen: Screen) -> None:
        self.plan = plan
        self.screen = screen
        # Before the others give up; theirs may be in the plan.
        self._hanging = Hanging(max(_LEAST_HANG_S, timeout_s({**plan.env, **os.environ}) / 2))
        self._chronicle = Chronicle(screen)
        self.dir = RunDir.create(plan.run) if plan.resume is None else RunDir(plan.run)
        self.children = Children(self.dir.logs)
        self._liaison = Liaison(self.dir.coordinator, self.dir.token())
        self._policy = RestartPolicy(plan.max_restarts)
        self._crew = Crew(plan.workers)
        self._fleet = Fleet(plan.servers)
        self._due: dict[str, float] = {}
        self._resume = plan.resume
        self._rightsized = plan.resume is None
        self._concluding_since: float | None = None
        self._others = False
        self._rewinds = 0
        self._next_look = 0.0
        self._news = False

    def run(self) -> int:
        """Start everything, follow it to its end, leave nothing behind. Returns the exit code.

        Raises:
            UsageError: another launcher runs this directory.
        """
        outcome = _Outcome(EXIT_LOST, "the launcher itself failed")
        try:
            with self.dir.launching(), terminable():
                try:
                    self.dir.end_file.unlink(missing_ok=True)
                    self._start_all()
                    outcome = self._follow()
                except Terminated:
                    outcome = _Outcome(EXIT_TERMINATED, "told to end (SIGTERM)")
                except KeyboardInterrupt:
                    outcome = _Outcome(EXIT_INTERRUPTED, "interrupted")
                finally:
                    self._end(outcome)
                    if self.plan.trace is not None:
                        draw(self.dir.trace, self.plan.trace, self.screen)
        finally:
            self._liaison.close()
        if outcome.code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
            advice = f"`paceline run --resume {self.dir.path}` goes on"
            self.screen.note(f"{outcome.reason}: every process has ended; {advice}", warning=True)
        elif outcome.code != EXIT_DONE:
            self.screen.failure(outcome.reason, outcome.trace, outcome.advice)
        return outcome.code

    # ------------------------------------------------------------ starting and ending

    def _start_all(self) -> None:
        if self.plan.resume is not None:
            self.dir.summary_file.unlink(missing_ok=True)
            self.dir.coordinator_file.unlink(missing_ok=True)  # nobody is there any more
        self.dir.logs.mkdir(exist_ok=True)
        self.plan.save()
        self.children.warm()
        self._start("coordinator")
        for _ in range(self.plan.servers):
            self._start(self._fleet.hire())
        for _ in range(self.plan.workers):
            self._start(self._crew.hire())

    def _start(self, name: str) -> None:
        """Start a role, for the first time or again."""
        plan, role, run = self.plan, role_of(name), str(self.dir.path)
        quiet = {**plan.role_env(name), "OMP_NUM_THREADS": "1"}
        if role == "coordinator":
            # A restarted one goes on where the log ends. Until it has answered, it may not have gone back there yet.
            spec = msgspec.json.encode(replace(plan.cluster, resume=self._resume)).decode()
            child = self.children.start(name, ["coordinator", name, run, spec], quiet, light=True)
        elif role == "server":
            child = self.children.start(name, ["server", name, run, str(plan.server_threads)], plan.role_env(name))
        else:
            arguments = ["worker", name, str(plan.script.absolute()), *plan.arguments]
            child = self.children.start(name, arguments, plan.worker_env(name), cwd=plan.cwd, defaults=plan.env)
        self._policy.started(name, child.pid, time.monotonic())

    def _end(self, outcome: _Outcome) -> None:
        # Workers of a run that is not done would first hand back what nobody will compute.
        at_once = None if outcome.code == EXIT_DONE else "worker-"
        while True:
            try:
                self.children.end(at_once=at_once)
                self._drain()
                if outcome.code != EXIT_DONE:
                    end = {"state": "ended", "code": outcome.code, "reason": outcome.reason}
                    self.dir.write_end(end | (_position(self._liaison.status) if self._liaison.heard else {}))
                break
            except KeyboardInterrupt:
                continue  # a second Ctrl-C while children end must not leave them behind

    # ------------------------------------------------------------ following

    def _follow(self) -> _Outcome:
        while True:
            for event in self._events():
                if isinstance(event, Line):
                    self._line(event)
                else:
                    outcome = self._exited(event)
                    if outcome is not None:
                        return outcome
            self._start_due()
            if self._liaison.pump():
                self._looked()
            self._end_hanging()
            failure = self._liaison.status.failure
            if failure is not None:
                return self._failed(failure)
            if not self._crew.gone:
                self._concluding_since = None
                continue
            outcome = self._conclude()
            if outcome is not None:
                return outcome

    def _events(self) -> Iterator[Line | Exit]:
        """What has happened: waits a little for the first event, and not at all for the next ones."""
        wait_s = _BUSY_WAIT_S if self._liaison.busy or self._due else _WAIT_S
        for number in range(_BURST):
            try:
                yield self.children.events.get(block=not number, timeout=wait_s)
            except queue.Empty:
                return

    def _start_due(self) -> None:
        now = time.monotonic()
        for name in [n for n, at in self._due.items() if at <= now]:
            del self._due[name]
            self._start(name)

    def _line(self, line: Line) -> None:
        script = role_of(line.name) == "worker"
        if script and not self._chronicle.begun and time.monotonic() >= self._next_look:
            # What will be computed comes before what the script says of it; a coordinator that died is not waited for.
            heard = bool(self.children.alive("coordinator")) and self._look(0.1 if self._liaison.heard else 0.5)
            self._next_look = time.monotonic() + (_BUSY_WAIT_S if heard else 1.0)
        self._chronicle.line(line)

    def _drain(self) -> None:
        while True:
            try:
                event = self.children.events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, Line):
                self._line(event)

    def _look(self, timeout_s: float = 0.5) -> bool:
        heard = self._liaison.look(timeout_s)
        if heard:
            self._looked()
        return heard

    def _looked(self) -> None:
        """There is a new status: show it, and do what it asks for."""
        self._news = True
        status = self._liaison.status
        self._resume = None
        self._chronicle.status(status)
        self._policy.saw(taking_part(status), status.incarnation, status.version)
        self._resize(status)

    def _end_hanging(self) -> None:
        """Kill whoever lives and does not answer: it is started again, as if it had died."""
        news, self._news = self._news, False
        alive = {n: c.pid for n, c in self.children.children.items() if c.alive and n not in self._fleet.leaving}
        there = taking_part(self._liaison.status) if news else None
        for name, silent_s in self._hanging.see(time.monotonic(), alive, there).items():
            self.screen.note(f"{name} has not answered for {silent_s:.0f} s: it is killed", warning=True)
            self.children.children[name].signal(signal.SIGKILL, group=True)

    # ------------------------------------------------------------ more or fewer workers and servers

    def _resize(self, status: Status) -> None:
        wanted, servers = status.wanted_workers, status.wanted_servers
        if wanted is None or servers is None or not self._liaison.settled or self._liaison.finishing:
            return
        if not self._rightsized:
            # The command line of a resumed run goes over what was asked for before.
            self._rightsized = True
            if (wanted, servers) != (self._crew.target, self._fleet.target):
                self._liaison.scale(self._crew.target, self._fleet.target)
            return
        if (wanted, servers) != (self._crew.target, self._fleet.target):
            replace(self.plan, workers=wanted, servers=servers).save()  # cut off, it goes on with what was wanted last
        self._chronicle.wants("server", servers, self._fleet.target)
        missing, emptied = self._fleet.adjust(servers, status.draining, status.drained)
        for _ in range(missing):
            self._start(self._fleet.hire())
        for name in emptied:
            if self._due.pop(name, None) is not None:
                self._fleet.ended(name)
            else:
                self.children.children[name].signal(signal.SIGTERM)
        self._resize_crew(wanted)

    def _resize_crew(self, wanted: int) -> None:
        if wanted == self._crew.target:
            return
        self._chronicle.wants("worker", wanted, self._crew.target)
        missing, surplus = self._crew.adjust(wanted)
        for _ in range(missing):
            self._start(self._crew.hire())
        for name in surplus:
            if self._due.pop(name, None) is not None:
                self._crew.ended(name, EXIT_LEFT)
            else:
                self.children.children[name].signal(signal.SIGTERM)

    def _shrink(self) -> None:
        """A worker will not come back: from now on fewer are wanted, so that `paceline scale` can ask for more."""
        if self._crew.target > 1:
            self._crew.target -= 1
            self._liaison.scale(self._crew.target)

    # ------------------------------------------------------------ ends

    def _exited(self, event: Exit) -> _Outcome | None:
        name, code, role = event.name, event.code, role_of(event.name)
        if role != "coordinator":
            self._liaison.report(name, event.pid, code)
            self._news |= self._liaison.pump()
        if role == "server" and (why := self._fleet.ended(name)):
            self.screen.note(f"{name} {why}", warning=code != EXIT_DONE)
            return None
        if (role == "server" and code == EXIT_DONE) or code == EXIT_SCRIPT or (role == "worker" and self._crew.done):
            self._look()  # the job may have failed, or be complete
        decision = self._policy.ended(name, code, time.monotonic())
        if role == "worker" and not isinstance(decision, Stay) and not self._comes_back(name):
            decision = Stay()
        if isinstance(decision, Again) and self._liaison.status.failure is None:
            self._due[name] = time.monotonic() + decision.after_s
            self._chronicle.restarts(name, code, decision)
            return None
        if role == "worker":
            return self._retire(name, code, decision)
        if self._liaison.status.failure is not None:
            return None
        why = enough(name, code, decision, self._policy.limit)
        self._look()
        if self._liaison.status.failure is not None:
            return None
        if role == "server" and self._fleet.can_do_without(self.plan.replicas):
            self._fleet.give_up(name)
            self._liaison.scale(self._crew.target, self._fleet.target)
            self.screen.note(f"{why}: the run goes on with {self._fleet.target} servers", warning=True)
            return None
        tail = self._chronicle.tail(name) if code > 0 else ""
        advice = f"see logs/{name}.log; `paceline run --resume {self.dir.path}` goes on"
        return _Outcome(EXIT_LOST, why, tail, advice)

    def _comes_back(self, name: str) -> bool:
        """Whether a worker may be started again at all."""
        return name not in self._crew.leaving and not (self._crew.done and not self._liaison.status.unfinished)

    def _retire(self, name: str, code: int, decision: Decision) -> _Outcome | None:
        """A worker has ended for good."""
        leaving = name in self._crew.leaving
        self._crew.ended(name, code)
        if code == EXIT_SCRIPT and self._liaison.status.failure is None:
            # One that got as far as joining has told the coordinator, and is found in the status.
            tail = self._chronicle.tail(name)
            return _Outcome(EXIT_SCRIPT, f"{name} failed", tail, f"the script's output is in logs/{name}.log")
        self._chronicle.retires(name, code, decision, self._policy.limit)
        if (code == EXIT_LEFT and not leaving) or isinstance(decision, GiveUp):
            self._shrink()
        return None

    def _failed(self, failure: FailureStatus) -> _Outcome:
        """The job failed: wait a moment for the other roles to say so too, so that the traceback comes last."""
        deadline = time.monotonic() + 1.0
        while self.children.alive("worker-") and time.monotonic() < deadline:
            with suppress(queue.Empty):
                event = self.children.events.get(timeout=0.05)
                if isinstance(event, Line):
                    self._line(event)
        if failure.kind == "script":
            advice = f"the script failed; each worker's output is in {self.dir.logs}"
            return _Outcome(EXIT_SCRIPT, failure.reason, failure.trace, advice)
        return _Outcome(EXIT_LOST, failure.reason, failure.trace, f"each role's output is in {self.dir.logs}")

    # ------------------------------------------------------------ the end

    def _conclude(self) -> _Outcome | None:
        """No worker of this engine is left. Returns None as long as it is not clear how the run ended."""
        liaison = self._liaison
        if self._concluding_since is None:
            if not liaison.settled or not self._look():
                return None  # a coordinator that is away comes back, or fails the run
            self._concluding_since = time.monotonic()
        status = liaison.status
        others = [name for name in status.workers if name not in self._crew.codes]
        self._others = self._others or bool(others)
        if others and (status.unfinished or time.monotonic() < self._concluding_since + _PARTING_S):
            return None
        if not self._crew.done and (status.unfinished or not self._others):
            advice = f"look at the end of logs/worker-*.log; `paceline run --resume {self.dir.path}` goes on"
            return _Outcome(EXIT_LOST, f"no worker is left{self._where()}", "", advice)
        if status.unfinished:
            return self._start_over()
        liaison.finishing = True
        if liaison.summary is None:
            return None
        summary, liaison.summary = liaison.summary, None
        if summary.state == "unfinished":
            self._look()
            return self._start_over()
        if summary.state == "failed":
            self._look()
            return None if liaison.status.failure else _Outcome(EXIT_LOST, "the job failed", "", "see logs")
        self._finish(summary)
        return _Outcome(EXIT_DONE)

    def _where(self) -> str:
        status = self._liaison.status
        if status.step is None or status.end_step is None:
            return ""
        return f" at step {status.step} of {status.end_step}"

    def _start_over(self) -> _Outcome | None:
        """Every worker came to the end of its script, but the job went back after that."""
        self._liaison.finishing, self._concluding_since = False, None
        before, self._rewinds = self._rewinds, self._liaison.status.rewinds
        if self._rewinds <= before:
            return _Outcome(EXIT_LOST, f"no worker is left{self._where()}", "", "look at the end of logs/worker-*.log")
        self.screen.note("a server was lost at the very end: the workers start their scripts again", warning=True)
        for name in self._crew.start_over():
            self._start(name)
        return None

    def _finish(self, summary: RunSummary) -> None:
        if self._liaison.status.headline is None:
            self.screen.note("nothing was trained: the script never looped over job.batches(...)", warning=True)
        summary = msgspec.structs.replace(summary, restarts=self._policy.restarts)
        text = json.dumps(msgspec.to_builtins(summary), indent=2) + "\n"
        self.dir.write_summary(text)
        if self.plan.summary is not None:
            self.plan.summary.parent.mkdir(parents=True, exist_ok=True)
            self.plan.summary.write_text(text)
        self._drain()
        self.screen.summary(summary)


def _position(status: Status) -> dict[str, object]:
    """What ``ended.json`` tells of the last status."""
    return {"step": status.step, "end_step": status.end_step, "checkpoint": msgspec.to_builtins(status.checkpoint)}
