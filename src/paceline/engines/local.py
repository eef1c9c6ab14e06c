"""All roles on this machine: start them, watch them, report their ends, collect the summary."""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from paceline.clients.observer import Observer
from paceline.config import load
from paceline.config.dials import ClusterSpec, parse_mode
from paceline.engines.children import Children, Exit, Line
from paceline.errors import TransportError, UsageError
from paceline.runtime.rundir import RunDir

EXIT_DONE, EXIT_SCRIPT, EXIT_USAGE, EXIT_LOST, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
_STATUS_S = 0.25
_BURST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to run. `mode`, `slots` and `seed` go over what the script says; None leaves it to the script."""

    script: Path
    arguments: Sequence[str] = ()
    workers: int = 2
    servers: int = 1
    mode: str | None = None
    slots: int | None = None
    seed: int | None = None
    threads: int = 1
    run: Path
    summary: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.script.is_file():
            raise UsageError(f"{self.script} is not a file")
        if self.mode is not None:
            parse_mode(self.mode)
        for name in ("workers", "servers", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.slots is not None and self.slots < 1:
            raise UsageError(f"--slots must be at least 1, not {self.slots}")
        if self.summary is not None:
            _check_writable(self.summary)

    @property
    def cluster(self) -> ClusterSpec:
        """What the coordinator is told."""
        return ClusterSpec(workers=self.workers, servers=self.servers, heartbeat_timeout_s=load.heartbeat_timeout_s())

    def worker_env(self, name: str) -> dict[str, str]:
        """The environment of one worker. RANK and WORLD_SIZE are left alone: other libraries would start DDP."""
        env = {
            load.RUN: str(self.run.resolve()),
            load.NAME: name,
            load.THREADS: str(self.threads),
            **self.env,
        }
        for key, value in ((load.MODE, self.mode), (load.SLOTS, self.slots), (load.SEED, self.seed)):
            if value is not None:
                env[key] = str(value)
        return env


def _check_writable(summary: Path) -> None:
    """Better now than after the training."""
    folder = summary.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK) and not summary.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise UsageError(f"--summary {summary} cannot be written")


class Screen(Protocol):
    """Where a run shows itself."""

    def line(self, name: str, text: str) -> None:
        """A role printed a line."""
        ...

    def status(self, status: Mapping[str, Any]) -> None:
        """The newest state of the run."""
        ...

    def note(self, text: str, *, warning: bool = False) -> None:
        """Something the user should know."""
        ...

    def failure(self, reason: str, trace: str, advice: str) -> None:
        """The last thing printed when a run fails."""
        ...

    def summary(self, summary: Mapping[str, Any]) -> None:
        """The run is done."""
        ...


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
        self.dir = RunDir.create(plan.run)
        self.children = Children(self.dir.logs)
        self._observer: Observer | None = None
        self._exits: dict[str, int] = {}
        self._pending: list[Exit] = []
        self._headline = False
        self._next_status = 0.0
        self._status: Mapping[str, Any] = {}
        self._lines: dict[str, list[str]] = {}

    def run(self) -> int:
        """Start everything, follow it to its end, leave nothing behind. Returns the exit code."""
        try:
            self._start()
            outcome = self._follow()
            if outcome.code == EXIT_DONE:
                outcome = self._conclude()
        except KeyboardInterrupt:
            outcome = _Outcome(EXIT_INTERRUPTED)
        finally:
            # A second Ctrl-C while children end must not leave them behind.
            self._end()
        if outcome.code == EXIT_INTERRUPTED:
            self.screen.note("interrupted: every process has ended", warning=True)
        elif outcome.code != EXIT_DONE:
            self.screen.failure(outcome.reason, outcome.trace, outcome.advice)
        return outcome.code

    def _start(self) -> None:
        plan, run = self.plan, str(self.dir.path)
        spec = msgspec.json.encode(plan.cluster).decode()
        quiet = {"OMP_NUM_THREADS": "1"}
        self.children.start("coordinator", ["coordinator", run, spec], quiet)
        for i in range(plan.servers):
            self.children.start(f"server-{i}", ["server", run, f"server-{i}", "1"], quiet)
        for i in range(plan.workers):
            name = f"worker-{i}"
            arguments = ["worker", str(plan.script), *plan.arguments]
            self.children.start(name, arguments, plan.worker_env(name))

    def _end(self) -> None:
        while True:
            try:
                self.children.end()
                break
            except KeyboardInterrupt:
                continue
        self._drain()
        if self._observer is not None:
            self._observer.close()

    # ------------------------------------------------------------ following

    def _follow(self) -> _Outcome:
        while True:
            # Much of what is known, before asking the coordinator, which may be the one that died.
            for event in self._events():
                if isinstance(event, Line):
                    self._line(event)
                else:
                    outcome = self._exited(event)
                    if outcome is not None:
                        return outcome
            self._look()
            failure = self._status.get("failure")
            if failure is not None:
                return self._failed(failure)

    def _events(self) -> Iterator[Line | Exit]:
        """What has happened: waits a little for the first event, and not at all for the next ones."""
        for number in range(_BURST):
            try:
                yield self.children.events.get(block=not number, timeout=_STATUS_S / 2)
            except queue.Empty:
                return

    def _line(self, line: Line) -> None:
        kept = self._lines.setdefault(line.name, [])
        kept.append(line.text)
        del kept[:-40]
        looked = self._next_status - _STATUS_S
        if not self._headline and time.monotonic() > looked + 0.02 and self.children.alive("coordinator"):
            self._look(force=True)  # what will be computed comes before what the script says of it
        self.screen.line(line.name, line.text)

    def _drain(self) -> None:
        while True:
            try:
                event = self.children.events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, Line):
                self._line(event)

    def _exited(self, event: Exit) -> _Outcome | None:
        self._exits[event.name] = event.code
        role = event.name.split("-")[0]
        how = f"signal {-event.code}" if event.code < 0 else f"exit code {event.code}"
        if role == "coordinator":
            tail = "\n".join(self._lines.get("coordinator", []))
            return _Outcome(EXIT_LOST, f"the coordinator ended ({how})", tail, "see logs/coordinator.log")
        if role == "server":
            self._report(event)
            tail = "\n".join(self._lines.get(event.name, []))
            return _Outcome(
                EXIT_LOST,
                f"{event.name} ended ({how}), and its blocks have no other copy",
                tail if event.code > 0 else "",
                f"see logs/{event.name}.log",
            )
        self._report(event)
        if event.code == EXIT_SCRIPT:
            # The worker told the coordinator before it ended, unless it never got that far.
            self._look(force=True)
            if self._status.get("failure") is None:
                tail = "\n".join(self._lines.get(event.name, []))
                return _Outcome(
                    EXIT_SCRIPT,
                    f"{event.name} failed",
                    tail,
                    f"the script's output is in logs/{event.name}.log",
                )
        elif event.code != EXIT_DONE:
            self.screen.note(f"{event.name} ended ({how}); its slots go to the other workers", warning=True)
        if self.children.alive("worker-"):
            return None
        codes = {c for n, c in self._exits.items() if n.startswith("worker-")}
        if codes & {EXIT_DONE}:
            return _Outcome(EXIT_DONE)
        return _Outcome(EXIT_LOST, "no worker is left", "", "look at the end of logs/worker-*.log")

    def _report(self, event: Exit) -> None:
        """Tell the coordinator at once, or as soon as it can be reached."""
        self._pending.append(event)
        observer = self._connect()
        if observer is None:
            return
        try:
            while self._pending:
                first = self._pending[0]
                observer.exited(first.name, first.pid, first.code)
                del self._pending[0]
        except TransportError as error:
            self.screen.note(f"cannot reach the coordinator: {error}", warning=True)

    def _connect(self) -> Observer | None:
        if self._observer is None:
            address = self.dir.coordinator()
            if address is not None:
                self._observer = Observer(address, self.dir.token())
        return self._observer

    def _look(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now < self._next_status:
            return
        self._next_status = now + _STATUS_S
        observer = self._connect()
        if observer is None:
            return
        try:
            self._status = observer.status(timeout_s=1.0)
        except TransportError:
            return
        if not self._headline and self._status.get("headline"):
            self._headline = True
            self.screen.note(str(self._status["headline"]))
            if self._status.get("advice"):
                self.screen.note(str(self._status["advice"]), warning=True)
        self.screen.status(self._status)

    def _failed(self, failure: Mapping[str, Any]) -> _Outcome:
        """The job failed: wait a moment for the other roles to say so too, so that the traceback comes last."""
        deadline = time.monotonic() + 1.0
        while self.children.alive("worker-") and time.monotonic() < deadline:
            try:
                event = self.children.events.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(event, Line):
                self._line(event)
        if failure["kind"] == "script":
            advice = f"the script failed; each worker's output is in {self.dir.logs}"
            return _Outcome(EXIT_SCRIPT, failure["reason"], failure["trace"], advice)
        return _Outcome(EXIT_LOST, failure["reason"], failure["trace"], f"each role's output is in {self.dir.logs}")

    # ------------------------------------------------------------ the end

    def _conclude(self) -> _Outcome:
        observer = self._connect()
        if observer is None:
            return _Outcome(EXIT_LOST, "the coordinator never announced itself", "", "see logs/coordinator.log")
        self._look(force=True)
        failure = self._status.get("failure")
        if failure is not None:
            return self._failed(failure)
        if self._status.get("unfinished"):
            where = f"step {self._status['step']} of {self._status['end_step']}"
            return _Outcome(EXIT_LOST, f"no worker is left at {where}", "", "look at the end of logs/worker-*.log")
        if self._status.get("headline") is None:
            self.screen.note("nothing was trained: the script never looped over job.batches(...)", warning=True)
        try:
            summary = observer.finish()
        except TransportError as error:
            return _Outcome(EXIT_LOST, f"no summary: {error}", "", "see logs/coordinator.log")
        text = json.dumps(summary, indent=2) + "\n"
        for path in (self.dir.summary_file, self.plan.summary):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        self._drain()
        self.screen.summary(summary)
        return _Outcome(EXIT_DONE)
