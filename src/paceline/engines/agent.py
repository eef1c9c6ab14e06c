"""The agent of a host: one process that starts, watches and ends the roles there. `AgentCore` decides what it does."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from paceline.config.role_spec import decode_role_spec
from paceline.core.files.manifest import FileManifest
from paceline.core.files.receiver import FileReceiver, Unpack
from paceline.core.hosts.agent import AgentCore, Announce, Beat, Begin, Effect, Over, SignalProcess, StartProcess, Tell
from paceline.engines.agent_folder import AgentFolder
from paceline.engines.bundle.store import Store
from paceline.engines.bundle.unpack import unpack
from paceline.engines.output import Exit, Line
from paceline.engines.port_thread import PortThread
from paceline.engines.processes import Children
from paceline.engines.sigterm import Notices
from paceline.errors import FilesError, PacelineError
from paceline.messages.base import Message
from paceline.messages.hosts import HostFacts, RoleEnded, SavedPiece, StartRole
from paceline.runtime.exit_codes import EXIT_DONE, EXIT_LOST, EXIT_SCRIPT, EXIT_USAGE
from paceline.runtime.roles import role_of
from paceline.runtime.rundir import RunDir
from paceline.runtime.saved_files import take_saved
from paceline.transport.base import PeerDown, PeerUp, Received
from paceline.transport.zmq.port import ZmqPort
from paceline.types import NodeId

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_FLUSH_S = 3.0  # without an acknowledgement of the last reports, after the roles have ended
_REFUSED_S = 2.0
_PIECE = 128 << 10
_MAX_FILES_NBYTES = 64 << 30  # the supervisor's user sets the limit; this one only bounds what a supervisor can do
_SUPERVISOR = "supervisor"


class Agent:
    """Offers this machine to the supervisor at `address`, until the run ends or a signal ends the agent.

    The first SIGTERM or Ctrl-C is a notice for the whole host, which the supervisor then empties; the second ends it.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        facts: HostFacts,
        say: Callable[[str], None],
        folder: Path,
        parent: int | None = None,
    ) -> None:
        """`say` shows a text to the user. The files of a run are kept in `folder` while it lasts.

        If `parent` is given, the agent and its roles end when that process, which has started it, has ended.
        """
        self._address = address
        self._token = token
        self._facts = facts
        self._say = say
        self._parent = parent
        self._made = AgentFolder(folder, facts.name)
        self._folder = self._made.path
        self._run = RunDir(self._folder / "run")
        self._children = Children(self._run)
        self._store = Store(self._folder / "contents")
        self._receiver = FileReceiver(self._store, _MAX_FILES_NBYTES)
        self._unpacked = ""
        self._cwds: dict[str, Path] = {}
        self._returned: set[Path] = set()
        self._core = AgentCore(secrets.token_hex(8), facts, str(self._folder))
        self._unreported: deque[Callable[[], Iterable[Effect]]] = deque()
        self._supervisor: NodeId | None = None
        self._notices = Notices()
        self._over: Over | None = None
        self._problem = ""
        self._refused_until: float | None = None

    def run(self) -> int:
        """Serve until the end; returns the exit code: 0 if the run has ended or the host has left."""
        node = f"agent/{self._facts.name}-{os.getpid()}-{secrets.token_hex(4)}"
        opened = ZmqPort(node, self._token, local=False, one_port=True)
        opened.connect(f"tcp://{self._address}")
        port = PortThread(opened, "supervisor")
        try:
            self._say(f"host {self._facts.name}: waits for a supervisor at {self._address}")
            self._children.warm()
            with self._notices:
                self._serve(port)
            self._end(port)
        finally:
            self._children.end(at_once=lambda role: True)
            port.close()
            self._made.close()
        assert self._over is not None
        self._say(f"host {self._facts.name}: {self._over.reason}")
        if not self._over.failed:
            return EXIT_DONE
        return EXIT_LOST if self._core.run else EXIT_USAGE

    # ------------------------------------------------------------ serving

    def _serve(self, port: PortThread) -> None:
        passed_on = 0
        while self._over is None:
            self._step(port)
            self._carry_out(port, self._core.tick(time.monotonic()))
            if self._refused_until is not None and time.monotonic() >= self._refused_until:
                why = "its token is not the supervisor's: give both the same --token-file"
                self._carry_out(port, self._core.end(why, failed=True))
            if self._parent is not None and os.getppid() != self._parent:
                self._carry_out(port, self._core.end("the process that started this agent has ended", failed=True))
            if self._notices.count > passed_on:
                passed_on = self._notices.count
                self._notice(port)

    def _notice(self, port: PortThread) -> None:
        if self._notices.count > 1 or not self._core.run:
            self._carry_out(port, self._core.end("ended by a signal"))
        else:
            self._say(
                f"host {self._facts.name}: told to leave; its roles move to other hosts (a second signal ends it)"
            )
            self._core.leave()

    def _step(self, port: PortThread) -> None:
        """Handle what has come from the supervisor and from the roles."""
        event = port.take(_POLL_S)
        while event is not None:
            self._hear(port, event)
            event = port.take(0.0)
        self._take_output()
        while self._unreported and not self._core.is_full:
            self._carry_out(port, self._unreported.popleft()())

    def _hear(self, port: PortThread, event: Received | PeerUp | PeerDown) -> None:
        match event:
            case PeerUp(peer=peer) if peer.startswith(f"{_SUPERVISOR}/"):
                self._supervisor = peer
                self._refused_until = None
                self._say(f"host {self._facts.name}: has reached the supervisor")
                self._carry_out(port, self._core.connected(time.monotonic()))
            case PeerDown(peer=peer, reason=reason, refused=refused):
                if peer == self._supervisor:
                    self._supervisor = None
                    self._carry_out(port, self._core.disconnected())
                if refused and reason != self._problem:
                    self._problem = reason
                    self._refused(refused, reason)
            case Received(peer=peer, message=message) if peer == self._supervisor:
                self._carry_out(port, self._core.handle(message, time.monotonic()))
                self._receive(port, self._receiver.handle(message))

    def _receive(self, port: PortThread, answers: Iterable[Message | Unpack]) -> None:
        """Send the answers to files that have come, and unpack them when they are complete."""
        for answer in answers:
            if isinstance(answer, Unpack):
                self._receive(port, self._receiver.unpacked(answer.req, self._unpack(answer.manifest)))
            else:
                self._carry_out(port, [Tell(answer)])

    def _unpack(self, manifest: FileManifest) -> str:
        """Unpack the files of the run; returns why that is not possible, "" if it is."""
        if manifest.digest != self._unpacked:  # scripts may have written to files that were unpacked before
            try:
                unpack(manifest, self._store, self._folder / "files")
            except FilesError as error:
                return str(error)
            self._unpacked = manifest.digest
        return ""

    def _refused(self, rule: str, reason: str) -> None:
        """Say why the two sides refuse each other. Another token does not become the right one by waiting.

        A connection that ends in the handshake is refused for its token, unless the other side was just closing.
        """
        self._say(
            f"host {self._facts.name}: the supervisor at {self._address} and this agent refuse each other: {reason}"
        )
        if rule in ("token", "connection-handshake") and not self._core.run:
            self._refused_until = time.monotonic() + (0.0 if rule == "token" else _REFUSED_S)

    def _take_output(self) -> None:
        """Queue the lines and ends of roles, unless the supervisor is too far behind."""
        if self._unreported:
            return
        for _ in range(200):
            try:
                event = self._children.events.get_nowait()
            except queue.Empty:
                return
            self._queue(event)

    def _queue(self, event: Line | Exit) -> None:
        if isinstance(event, Line):
            line = event
            self._unreported.append(lambda: self._core.line(line.name, line.stream.name, line.text))
            return
        for path in take_saved(self._run, event.name) if role_of(event.name).scripted else ():
            self._return_file(event.name, path)
        self._return_traces(event.name)
        end = RoleEnded(event.name, event.start, event.code)
        self._unreported.append(lambda: self._core.ended(end))

    def _return_file(self, name: str, path: Path) -> None:
        cwd = self._cwds[name]
        if not path.is_relative_to(cwd):
            where = f"{path} was saved on host {self._facts.name}, and stays there: give job.save a relative path"
            self._unreported.append(lambda: self._core.line(name, "ERR", where))
            return
        self._queue_pieces(_pieces(path, str(path.relative_to(cwd))))

    def _return_traces(self, name: str) -> None:
        """Return what the processes called `name` have recorded. The files stay: a restarted process counts them."""
        for path in sorted(set(self._run.trace.glob(f"{name}.*.jsonl")) - self._returned):
            self._returned.add(path)
            self._queue_pieces(_pieces(path, path.name, trace=True))

    def _queue_pieces(self, pieces: Iterator[SavedPiece]) -> None:
        self._unreported.append(lambda: self._next_piece(pieces))

    def _next_piece(self, pieces: Iterator[SavedPiece]) -> list[Effect]:
        """Report one piece of a file. The others are read later, when the supervisor has room for them."""
        piece = next(pieces, None)
        if piece is None:
            return []
        self._unreported.appendleft(lambda: self._next_piece(pieces))
        return self._core.saved(piece)

    # ------------------------------------------------------------ carrying out

    def _carry_out(self, port: PortThread, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(message=message):
                    if self._supervisor is not None:
                        port.send(self._supervisor, message)
                case Beat(message=message):
                    if self._supervisor is not None:
                        port.beat(self._supervisor, message)
                case Begin(label=label):
                    self._begin(label)
                case Announce(address=address):
                    self._run.announce(address, 0)
                case StartProcess(order=order):
                    self._start(order)
                case SignalProcess(name=name, number=number, group=group):
                    if (child := self._children.children.get(name)) is not None:
                        child.signal(signal.Signals(number), group=group)
                case Over():
                    self._over = effect

    def _begin(self, label: str) -> None:
        """Prepare the directory of the run for the roles."""
        for folder in (self._run.path, self._run.logs):
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._run.token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._token.hex())
        self._say(f"host {self._facts.name}: takes part in {label}")

    def _start(self, order: StartRole) -> None:
        try:
            spec = decode_role_spec(order.spec)
            cwd = Path(order.cwd) if role_of(order.name).scripted else None
            self._cwds[order.name] = Path(order.cwd)
            if Path(order.cwd).is_relative_to(self._folder):
                Path(order.cwd).mkdir(parents=True, exist_ok=True)
            self._children.start(spec, cwd=cwd, defaults=order.env)
        except (OSError, msgspec.MsgspecError, PacelineError) as error:
            problem = f"{order.name} cannot be started: {error}"
            end = RoleEnded(order.name, order.start, EXIT_SCRIPT, problem)
            self._unreported.append(lambda: self._core.ended(end))

    # ------------------------------------------------------------ the end

    def _end(self, port: PortThread) -> None:
        """End the roles, and send the last reports."""
        assert self._over is not None
        self._children.end(at_once=lambda role: self._over is not None and self._over.failed)
        seen, deadline = self._core.acknowledged, time.monotonic() + _FLUSH_S
        while time.monotonic() < deadline and self._supervisor is not None:
            self._step(port)
            if self._core.acknowledged > seen:
                seen, deadline = self._core.acknowledged, time.monotonic() + _FLUSH_S
            if not self._unreported and self._children.events.empty() and self._core.has_reported:
                break


def _pieces(path: Path, name: str, *, trace: bool = False) -> Iterator[SavedPiece]:
    """The content of a file in pieces; nothing if it cannot be read."""
    try:
        size, offset = path.stat().st_size, 0
        with path.open("rb") as file:
            while True:
                data = file.read(_PIECE)
                last = offset + len(data) >= size
                yield SavedPiece(name, offset, data, last, trace)
                offset += len(data)
                if last or not data:
                    return
    except OSError as error:
        logger.warning("%s cannot be returned: %s", path, error.strerror)
