"""Runs the processes of a run on several hosts, by the agents there. The coordinator runs on this machine."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.config.role_spec import encode_role_spec
from paceline.core.hosts.choice import HostLoad, choose_host
from paceline.core.hosts.host_table import CutOff, Gone, HostTable, Joined, Leaves, Output, Reported, Say
from paceline.engines.awaited_hosts import awaited, how_hosts_come
from paceline.engines.carriers.base import Wanted
from paceline.engines.carriers.made import make_carrier
from paceline.engines.file_delivery import FileDelivery
from paceline.engines.fork_client import ServerEnd
from paceline.engines.host_facts import own_cores, own_versions
from paceline.engines.host_options import LOCAL_HOST, HostOptions
from paceline.engines.known_hosts import KnownHosts
from paceline.engines.local_runner import LocalRunner
from paceline.engines.output import Exit, Line, Stream
from paceline.engines.plan import RunPlan
from paceline.engines.port_thread import PortThread
from paceline.engines.remote_files import RemoteLogs, SavedFiles
from paceline.engines.role_runner import (
    HostGone,
    HostJoined,
    HostLeaves,
    Note,
    Order,
    Place,
    RunnerEvent,
    RunningProcess,
)
from paceline.errors import TransportError, UsageError
from paceline.messages.hosts import (
    EndHost,
    RoleEnded,
    RoleLine,
    SavedPiece,
    SignalRole,
    StartRole,
)
from paceline.runtime.exit_codes import HOST_LOST
from paceline.runtime.roles import COORDINATOR, SAMPLER, SERVER, Role, is_process_name, role_of
from paceline.runtime.rundir import RunDir, run_identity
from paceline.runtime.starts import last_starts
from paceline.transport.base import PeerDown, Received
from paceline.transport.zmq.port import ZmqPort

_STEP_S = 0.05
_TICK_S = 0.2
_FAREWELL_S = 5.0  # for agents to end their roles after the run, and then without a piece of a file
_FILES_S = 120.0  # for the files that they return then
_SHOW_S = 10.0


class HostRunner:
    """A `RoleRunner` for hosts. `local` runs the coordinator, and with `local_roles` other roles, too."""

    def __init__(self, plan: RunPlan, options: HostOptions, run: RunDir, local: LocalRunner) -> None:
        self._plan = plan
        self._options = options
        self._run = run
        self._local = local
        self._logs = RemoteLogs(run.logs)
        self._known = KnownHosts(run)
        self._saved = SavedFiles(plan.cwd or Path.cwd())
        self._traces = SavedFiles(run.trace)
        self._piece_at = 0.0
        self._files = None if options.shared_dir else FileDelivery(plan, run)
        self._carrier = make_carrier(options, run)
        self._listen = options.address or (self._carrier.own_address() or "127.0.0.1", 0)
        self._table = HostTable(run_identity(run), str(plan.run), own_versions(), options.term_s, self._listen[0])
        self._ready: deque[RunnerEvent] = deque()
        self._waiting: dict[str, float] = {}
        self._chosen: dict[str, str] = {}
        self._adopted: dict[str, int] = {}
        self._is_adopting = plan.adopt
        self._has_lost = False
        self._is_ending = False
        self._next_tick = 0.0
        hosts = max(0, options.min_hosts - options.local_roles)
        self._wanted = Wanted(plan.workers + plan.servers + plan.samplers, hosts, options.unlimited)
        try:
            port = _listen(run.token(), *self._listen)
            self.address = (port.address or "").removeprefix("tcp://")
            """Where agents find this supervisor, as they are told to dial it."""
            self._port = PortThread(port, "agents")
            self._carrier.begin(self.address, run.token())
        except BaseException:
            self._carrier.close()
            raise

    # ------------------------------------------------------------ before the first role

    def warm(self) -> None:
        """See `RoleRunner.warm`. The coordinator, which this machine always carries, does not need it."""
        if self._options.local_roles:
            self._local.warm()

    def fork_server_ended(self) -> ServerEnd | None:
        """See `RoleRunner.fork_server_ended`."""
        return self._local.fork_server_ended()

    def gather(self, show: Callable[[str], None], check: Callable[[], None] = lambda: None) -> dict[str, int]:
        """See `RoleRunner.gather`: wait for `min_hosts` hosts, or for the hosts of a run that is adopted."""
        known = self._known.read() if self._is_adopting else frozenset()
        # A role of a host that does not return may run until its agent's term has passed: rule 13.
        deadline = time.monotonic() + self._table.lost_after_s
        next_show = 0.0
        needed = 1 if self._is_adopting else self._options.min_hosts  # an adopted run goes on with what has returned
        while True:
            check()
            self._look(_STEP_S)
            hosts, now = self._table.hosts, time.monotonic()
            is_complete = not self._carrier.coming(self._joined()) and (known <= hosts.keys() or now > deadline)
            ready = sum(map(self._is_ready, hosts)) + self._options.local_roles
            if is_complete and ready >= needed:
                break
            if now >= next_show:
                next_show = now + _SHOW_S
                how = how_hosts_come(self._options.engine, self.address)
                problems = self._table.problems.values()
                show(awaited(ready, needed, known - hosts.keys(), deadline - now, how, problems))
        self._is_adopting = False
        self._wanted = replace(self._wanted, has_begun=True)
        return dict(self._adopted)

    def _is_ready(self, host: str) -> bool:
        """Whether a host has the user's files."""
        return self._files is None or self._files.has(host)

    # ------------------------------------------------------------ roles

    def has_room(self, name: str) -> bool:
        """See `RoleRunner.has_room`."""
        if role_of(name) is COORDINATOR:
            return True
        waited_s = time.monotonic() - self._waiting.setdefault(name, time.monotonic())
        host = choose_host(role_of(name).name, self.capacity(), waited_s, may_wait=self._has_lost)
        if host is None:
            return False
        self._chosen[name] = host
        del self._waiting[name]
        return True

    def capacity(self) -> list[HostLoad]:
        """See `RoleRunner.capacity`."""
        servers, samplers = ([process.name for process in self.alive(role)] for role in (SERVER, SAMPLER))
        loads = [load for load in self._table.loads(servers, samplers) if self._is_ready(load.name)]
        if self._options.local_roles:
            mine = [child.name for child in self._local.alive() if child.role is not COORDINATOR]
            of = [sum(name in names for name in mine) for names in (servers, samplers)]
            loads.append(HostLoad(LOCAL_HOST, own_cores(), len(mine) - sum(of), *of))
        return loads

    def start(self, name: str, start: int, order: Order) -> None:
        """See `RoleRunner.start`."""
        host = self._chosen.pop(name, LOCAL_HOST)
        if host == LOCAL_HOST:
            self._local.start(name, start, lambda _: order(self._place(host, name)))
            return
        known, place = self._table.hosts[host], self._place(host, name)
        spec = encode_role_spec(order(place))
        cwd = self._plan.path_at(place, self._plan.cwd or Path.cwd())
        self._table.assign(host, name, start)
        self._logs.begin(name)
        self._known.write(self._table.hosts)
        assert known.peer is not None
        self._port.send(known.peer, StartRole(name, start, spec, cwd, dict(self._plan.env)))

    def _place(self, host: str, name: str) -> Place:
        """The place of the role called `name` on `host`, which may be this machine."""
        known = self._table.hosts.get(host)
        names = [child.name for child in self._local.alive()] if known is None else list(known.roles)
        workers = max(1, sum(role_of(other).scripted for other in [*names, name]))
        if known is None:
            run = str(self._run.path.resolve())
            return Place(host_name=host, address=self._listen[0], run=run, cores=own_cores(), workers=workers)
        root = None if self._options.shared_dir else f"{known.folder}/files"
        return Place(
            host_name=host,
            address=known.facts.address,
            run=f"{known.folder}/run",
            code_root=root,
            saves=root is not None,
            cores=known.facts.cores,
            workers=workers,
        )

    def signal(self, name: str, number: int, *, group: bool = False) -> None:
        """See `RoleRunner.signal`. A signal to a host that is cut off is not sent."""
        host = self._table.host_of(name)
        if host is None:
            self._local.signal(name, number, group=group)
        elif host.peer is not None:
            self._port.send(host.peer, SignalRole(name, host.roles[name], int(number), group))

    def alive(self, role: Role | None = None) -> Sequence[RunningProcess]:
        """See `RoleRunner.alive`."""
        away = [running for host in self._table.hosts.values() for running in host.running]
        return [*self._local.alive(role), *(r for r in away if role is None or role_of(r.name) is role)]

    # ------------------------------------------------------------ hosts

    def want(self, workers: int, servers: int) -> None:
        """See `RoleRunner.want`."""
        self._wanted = replace(self._wanted, roles=workers + servers)

    def _joined(self) -> dict[str, int]:
        """The number of roles on each host that takes part."""
        return {name: len(host.roles) for name, host in self._table.hosts.items()}

    def has_host(self, host: str) -> bool:
        """See `RoleRunner.has_host`."""
        return host in self._table.hosts

    def roles_on(self, host: str) -> list[str]:
        """See `RoleRunner.roles_on`."""
        known = self._table.hosts.get(host)
        return [] if known is None else list(known.roles)

    def drain(self, host: str, *, undo: bool = False) -> None:
        """See `RoleRunner.drain`."""
        self._table.drain(host, undo=undo)

    def dismiss(self, host: str) -> None:
        """See `RoleRunner.dismiss`."""
        if host in self._table.hosts:
            self._carry_out(self._table.dismiss(host, "the host is empty"), lost=False)

    def saw(self, members: set[tuple[str, int]]) -> None:
        """See `RoleRunner.saw`: a host that is cut off, and of which no role is a member any more, is lost."""
        self._carry_out(self._table.declared(members, time.monotonic()))

    # ------------------------------------------------------------ events

    def next_event(self, timeout_s: float) -> RunnerEvent | None:
        """See `RoleRunner.next_event`."""
        deadline = time.monotonic() + timeout_s
        while not self._ready:
            left = deadline - time.monotonic()
            self._look(min(max(0.0, left), _STEP_S))
            if not self._ready and left <= 0:
                return None
        return self._ready.popleft()

    def _look(self, timeout_s: float) -> None:
        """Take what agents and local processes have sent. Waits for up to `timeout_s`."""
        while (event := self._local.next_event(0.0)) is not None:
            self._ready.append(event)
        wait_s = 0.0 if self._ready else timeout_s
        while (heard := self._port.take(wait_s)) is not None:
            wait_s = 0.0
            if isinstance(heard, Received):
                self._carry_out(self._table.handle(heard.peer, heard.message, time.monotonic()))
                self._deliver(heard)
            elif isinstance(heard, PeerDown):
                self._carry_out(self._table.session_lost(heard.peer))
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + _TICK_S
            self._carry_out(self._table.tick(time.monotonic(), self._run.coordinator() or ""))
            if not self._is_ending:  # no agent is brought for those that end with the run
                self._ready += self._carrier.tick(self._joined(), self._wanted)

    def _deliver(self, heard: Received) -> None:
        """Send a host the files that it asks for."""
        host = self._table.host_at(heard.peer)
        if self._files is None or host is None:
            return
        for message in self._files.handle(host, heard.message):
            self._port.send(heard.peer, message)
        if problem := self._files.problem(host):
            self._ready.append(Note(f"host {host} cannot take the files of the run: {problem}", warning=True))

    def _carry_out(self, outputs: Iterable[Output], *, lost: bool = True) -> None:
        for output in outputs:
            match output:
                case Say(to=peer, message=message):
                    self._port.send(peer, message)
                case Joined():
                    self._welcome(output)
                case Gone(host=host, reason=reason, roles=roles):
                    self._has_lost |= lost
                    if self._files is not None:
                        self._files.forget(host)
                    self._ready.append(HostGone(host, reason, lost=lost, roles=roles))
                    self._ready += [Exit(role.name, role.start, HOST_LOST) for role in roles]
                    self._known.write(self._table.hosts)
                case Leaves(host=host):
                    self._ready.append(HostLeaves(host))
                case CutOff(host=host, back=back):
                    text = "answers again" if back else "does not answer; its roles may go on"
                    self._ready.append(Note(f"the agent of host {host} {text}", warning=not back))
                case Reported(host=host, report=report):
                    self._reported(host, report)

    def _welcome(self, joined: Joined) -> None:
        facts = joined.facts
        if self._is_adopting:
            self._adopted |= self._table.adopt(joined, last_starts(self._run))
        self._carry_out(self._table.welcome(joined))
        self._known.write(self._table.hosts)
        peer = self._table.hosts[joined.host].peer
        if self._files is not None and peer is not None:
            for message in self._files.begin(joined.host):
                self._port.send(peer, message)
        offers = f"{facts.cores} core{'s' * (facts.cores != 1)} at {facts.address}"
        if joined.was_away:
            self._ready.append(Note(f"host {joined.host} is back"))
        elif not joined.again:
            self._ready.append(HostJoined(joined.host, f"host {joined.host} joins: {offers}"))

    def _reported(self, host: str, report: RoleLine | RoleEnded | SavedPiece) -> None:
        match report:
            case RoleLine(name=name) if not is_process_name(name):
                text = f"host {host} returned a line of {name[:64]!r}, which is refused: no process has that name"
                self._ready.append(Note(text, warning=True))
            case RoleLine(name=name, stream=stream, text=text):
                self._logs.add(name, text)
                self._ready.append(Line(name, text, Stream.__members__.get(stream, Stream.OUT)))
            case RoleEnded(name=name, start=start, code=code, problem=problem):
                if problem:
                    self._logs.add(name, problem)
                    self._ready.append(Line(name, f"{problem} (host {host})", Stream.LAST))
                self._ready.append(Exit(name, start, code))
            case SavedPiece():
                self._piece_at = time.monotonic()
                if problem := (self._traces if report.trace else self._saved).add(host, report):
                    self._ready.append(Note(problem, warning=True))

    # ------------------------------------------------------------ the end

    def end(self, patience_s: float = 1.0, *, at_once: Callable[[Role], bool] = lambda role: False) -> None:
        """See `RoleRunner.end`. Agents end with the run; one that is cut off ends when its term has passed."""
        self._is_ending = True
        for host in self._table.hosts.values():
            if host.peer is None:
                continue
            for role in host.running:
                if at_once(role_of(role.name)):
                    self._port.send(host.peer, SignalRole(role.name, role.start, signal.SIGKILL, group=True))
            self._port.send(host.peer, EndHost("the run has ended"))
        began = time.monotonic()
        deadline = began + patience_s + _FAREWELL_S
        while any(host.peer is not None for host in self._table.hosts.values()) and time.monotonic() < deadline:
            self._look(_STEP_S)
            deadline = max(deadline, min(self._piece_at, began + _FILES_S) + _FAREWELL_S)
        self._local.end(patience_s, at_once=at_once)
        self._port.close()
        self._carrier.close()


def _listen(token: bytes, address: str, port: int) -> ZmqPort:
    node = f"supervisor/{os.getpid()}-{secrets.token_hex(4)}"
    try:
        return ZmqPort(node, token, listen=address, port=port, local=False, one_port=True)
    except (TransportError, ValueError) as error:
        raise UsageError(f"--listen {address}:{port}: {error}") from None
