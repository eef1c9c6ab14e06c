"""Decides what a launcher does: which processes to start, start again or end, and whether the run continues.

Pure: it touches no process, no clock and no screen. The supervisor calls it when a process ends and when a status
comes, and carries out the actions that it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from paceline.engines.actions import Action, Dismiss, End, KeepSize, Lost, Outcome, Rescale, Start, Tell, Terminate
from paceline.engines.announcements import not_restarted, restarted, retired, sampler_retired, wanted
from paceline.engines.hang_detection import working
from paceline.engines.restart_policy import Again, Decision, ForkServerRestarts, GiveUp, RestartPolicy, Stay
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.samplers import Samplers
from paceline.engines.servers import Servers
from paceline.engines.stall_watch import StallWatch
from paceline.engines.stragglers import Stragglers
from paceline.engines.workers import Workers
from paceline.messages.status import Status
from paceline.runtime.exit_codes import EXIT_DEPOSED, EXIT_DONE, EXIT_LEFT, EXIT_LOG, EXIT_LOST, EXIT_SCRIPT
from paceline.runtime.roles import COORDINATOR, SAMPLER, SERVER, WORKER, Role, role_of
from paceline.runtime.rundir import RunDir

_ROOM_S = 0.2  # seconds between two questions whether a host has room


class Decisions:
    """Decides for one run, which begins with these numbers of processes. `hint` names its directory.

    After the job is complete, a worker that is still in its loop may go on for `grace_s` seconds. For a `resumed` run
    these numbers override the numbers in its log.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        replicas: int,
        limit: int,
        hint: ResumeHint,
        *,
        resumed: bool,
        grace_s: float,
        samplers: int = 0,
    ) -> None:
        self.workers = Workers(workers)
        self.servers = Servers(servers)
        self.samplers = Samplers(samplers)
        self._replicas = replicas
        self.fork_server = ForkServerRestarts()
        self._policy = RestartPolicy(limit)
        self._hint = hint
        self._size_told = not resumed
        self._stragglers = Stragglers(grace_s)
        self._stalls = StallWatch()
        self._dismissed: set[str] = set()
        self._moving: set[str] = set()
        self._due: dict[str, float] = {}

    # ------------------------------------------------------------ starts

    def first(self, adopted: Collection[str] = ()) -> Iterator[str]:
        """The names of the processes with which the run begins, in the order in which to start them.

        `adopted` processes run already: they count, and are not returned.
        """
        yield COORDINATOR.process_name(0)
        names = sorted(name for name in adopted if name.rpartition("-")[2].isdecimal())
        self.servers.adopt([name for name in names if role_of(name) is SERVER])
        self.workers.adopt([name for name in names if role_of(name) is WORKER])
        for _ in range(self.servers.target - len(self.servers.active)):
            yield self.servers.add()
        for _ in range(self.workers.target - len(self.workers.active)):
            yield self.workers.add()
        self.samplers.adopt([name for name in names if role_of(name) is SAMPLER])
        for _ in range(self.samplers.target - len(self.samplers.active)):
            yield self.samplers.add()

    def resize(self, workers: int, servers: int) -> None:
        """Begin with these numbers of workers and servers. Call it only before `first`."""
        self.workers.target, self.servers.target = workers, servers

    def started(self, name: str, start: int, now: float) -> None:
        """Take note that start number `start` of the process called `name` was made."""
        self._policy.started(name, start, now)
        self._stragglers.started(name)

    def wait(self, name: str, now: float) -> None:
        """Start the process called `name` a little later: no host has room for it now."""
        self._due[name] = now + _ROOM_S

    def move(self, name: str) -> None:
        """Start the process called `name` elsewhere after it has ended: it was told to leave its host."""
        self._moving.add(name)

    @property
    def wanted(self) -> tuple[int, int]:
        """How many processes with the script, and how many servers, are wanted."""
        return self.workers.target + self.samplers.target, self.servers.target

    @property
    def waiting(self) -> bool:
        """Whether a process that ended will be started again after a pause."""
        return bool(self._due)

    def due(self, now: float) -> list[str]:
        """The names of the processes to start again now, because their pause has ended. Each is returned once."""
        found = [name for name, at in self._due.items() if at <= now]
        for name in found:
            del self._due[name]
        return found

    @property
    def restarts(self) -> dict[str, int]:
        """How many times processes died and were started again, by role."""
        return self._policy.restarts

    # ------------------------------------------------------------ a new status

    def saw(self, status: Status, now: float, *, resizable: bool) -> Iterator[Action]:
        """The actions that a new status calls for. Without `resizable` the number of processes does not change."""
        self._policy.saw(working(status), status.incarnation, status.version)
        yield from self._await_stragglers(status, now)
        yield from self._stalls.see(status, [name for name in self.workers.active if name not in self._due], now)
        workers, servers, samplers = status.wanted_workers, status.wanted_servers, status.wanted_samplers
        if workers is None or servers is None or not resizable:
            return
        samplers = self.samplers.target if samplers is None else samplers
        if not self._size_told:
            # The command line of a resumed run overrides the numbers that were wanted before.
            self._size_told = True
            if (workers, servers) != (self.workers.target, self.servers.target):
                yield Rescale(self.workers.target, self.servers.target)
            return
        if (workers, servers, samplers) != (self.workers.target, self.servers.target, self.samplers.target):
            yield KeepSize(workers, servers, samplers)
        yield from self._resize_servers(servers, status)
        yield from self._resize_workers(workers)
        yield from self.resize_samplers(samplers)

    def _await_stragglers(self, status: Status, now: float) -> Iterator[Action]:
        self._stragglers.note(status)
        complete = self.workers.done and not status.unfinished and status.failure is None
        running = [name for name in self.workers.active if name not in self._due and name not in self._dismissed]
        for action in self._stragglers.see(running if complete else (), now):
            if isinstance(action, Dismiss):
                self._dismissed.add(action.name)
            yield action

    def _resize_servers(self, number: int, status: Status) -> Iterator[Action]:
        yield from wanted(SERVER, number, self.servers.target)
        missing, emptied = self.servers.adjust(number, status.draining, status.drained)
        for _ in range(missing):
            yield Start(self.servers.add())
        for name in emptied:
            if self._due.pop(name, None) is not None:
                self.servers.ended(name)
            else:
                yield Terminate(name)

    def _resize_workers(self, number: int) -> Iterator[Action]:
        if number == self.workers.target:
            return
        yield from wanted(WORKER, number, self.workers.target)
        missing, surplus = self.workers.adjust(number)
        for _ in range(missing):
            yield Start(self.workers.add())
        for name in surplus:
            if self._due.pop(name, None) is not None:
                self.workers.ended(name, EXIT_LEFT)
            else:
                yield Terminate(name)

    def resize_samplers(self, number: int) -> Iterator[Action]:
        """Start or end samplers until there are that many."""
        if number == self.samplers.target:
            return
        yield from wanted(SAMPLER, number, self.samplers.target)
        missing, surplus = self.samplers.adjust(number)
        for _ in range(missing):
            yield Start(self.samplers.add())
        for name in surplus:
            if self._due.pop(name, None) is not None:
                self.samplers.ended(name)
            else:
                yield Terminate(name)

    # ------------------------------------------------------------ ends

    def expected(self, name: str, code: int) -> Tell | None:
        """The note for a server that ended because it had to leave; None for any other process that ended."""
        if role_of(name) is not SERVER or not (why := self.servers.ended(name)):
            return None
        return Tell(f"{name} {why}", warning=code != EXIT_DONE)

    def needs_status(self, role: Role, code: int) -> bool:
        """Whether `exited` needs a status newer than this end, because the job may have failed or be complete."""
        if code == EXIT_SCRIPT:
            return True
        return (role is SERVER and code == EXIT_DONE) or (role is WORKER and self.workers.done)

    def exited(self, name: str, code: int, now: float, status: Status) -> Iterator[Action]:
        """The actions after the end of a process that was not `expected`."""
        role, decision = role_of(name), self._policy.ended(name, code, now)
        if name in self._moving:
            self._moving.discard(name)
            decision = Again(0.0, self._policy.count(name))
            code = EXIT_LEFT
        if role is SAMPLER:
            yield from self._sampler_ended(name, code, decision, status, now)
            return
        if role is WORKER and not isinstance(decision, Stay) and not self._comes_back(name, status):
            decision = Stay()
        if isinstance(decision, Again) and status.failure is None:
            self._due[name] = now + decision.after_s
            yield restarted(name, code, decision)
        elif role is WORKER:
            yield from self._retire(name, code, decision, status)
        elif status.failure is None:
            yield Lost(name, code, not_restarted(name, code, decision, self._policy.limit))

    def _sampler_ended(self, name: str, code: int, decision: Decision, status: Status, now: float) -> Iterator[Action]:
        """The actions after the end of a sampler: the run goes on in any case."""
        is_over = status.failure is not None or (self.workers.done and not status.unfinished)
        if name in self.samplers.leaving or is_over or not isinstance(decision, Again):
            yield from sampler_retired(name, code, expected=is_over or name in self.samplers.leaving)
            self.samplers.ended(name)
            return
        self._due[name] = now + decision.after_s
        yield restarted(name, code, decision)

    def lost(self, lost: Lost, status: Status) -> Iterator[Action]:
        """The actions after the loss of a process: the run continues if copies make up for a lost server, else ends."""
        if role_of(lost.name) is SERVER and self.servers.can_do_without(self._replicas):
            self.servers.give_up(lost.name)
            yield Rescale(self.workers.target, self.servers.target)
            more = f" (see {self._log(lost.name)})" * (lost.code > 0)
            yield Tell(f"{lost.reason}{more}: the run continues with {self.servers.target} servers", warning=True)
            return
        if lost.code == EXIT_LOG:
            again = f"then `paceline run --resume {self._hint.run}` checks the log, and goes on or says what to do"
            yield End(Outcome(EXIT_LOST, lost.reason, advice=f"the run needs its log: remove the cause; {again}"))
            return
        if lost.code == EXIT_DEPOSED:
            yield End(Outcome(EXIT_DEPOSED, lost.reason, advice=f"{self._hint.run} stays as it is"))
            return
        advice = f"see {self._log(lost.name)}; {self._hint.after_end(status)}"
        yield End(Outcome(EXIT_LOST, lost.reason, advice=advice, ended=lost.name))

    def _log(self, name: str) -> Path:
        return RunDir(self._hint.run).logs / f"{name}.log"

    def _comes_back(self, name: str, status: Status) -> bool:
        """Whether a worker may be started again: it was not told to leave, and there is work left."""
        return name not in self.workers.leaving and not (self.workers.done and not status.unfinished)

    def _retire(self, name: str, code: int, decision: Decision, status: Status) -> Iterator[Action]:
        """The actions after the end of a worker that is not started again."""
        leaving = name in self.workers.leaving
        self.workers.ended(name, code)
        if code == EXIT_SCRIPT and status.failure is None:
            # This worker failed before it joined: otherwise the coordinator would know, and the status have a failure.
            advice = f"{self._hint.after_error(status)}; its output is in {self._log(name)}"
            yield End(Outcome(EXIT_SCRIPT, f"{name} failed", advice=advice, ended=name))
            return
        if name not in self._dismissed:
            yield from retired(name, code, decision, self._policy.limit)
        if ((code == EXIT_LEFT and not leaving) or isinstance(decision, GiveUp)) and self.workers.give_up():
            # Want one worker fewer from now on, so that `paceline scale` can ask for one more.
            yield Rescale(self.workers.target)
