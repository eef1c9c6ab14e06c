"""Strangers at the port for agents, with an agent joined and a job that trains; and agents that dial an impostor."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.kit.ports import free_port
from tests.kit.real_runs import PACELINE, SMALL, Background, Process, background, environment, launched_warm
from tests.kit.simulated_hosts import facts_of
from tests.kit.strangers import Proxy, pour_noise
from tests.kit.strangers import Stranger as Dealer
from tests.unit.wire.test_headers import SAMPLES

from paceline.clients.observer import Observer
from paceline.engines.host_facts import own_versions
from paceline.errors import TransportError, UsageError
from paceline.messages.base import Message
from paceline.messages.hosts import (
    AgentBeat,
    Enlist,
    Enlisted,
    Reports,
    RoleEnded,
    RoleLine,
    SavedPiece,
    StartRole,
    TurnedAway,
)
from paceline.runtime.rundir import RunDir
from paceline.testing.host_cluster import SUPERVISOR, HostCluster
from paceline.testing.launch import Launched, listening
from paceline.testing.network import problem
from paceline.testing.strangers import Strangers
from paceline.transport.base import PeerDown, PeerUp, Received
from paceline.transport.zmq.port import ZmqPort, is_loopback
from paceline.wire.handshake import ClientHandshake, Farewell, Proof, decode_control, encode_control
from paceline.wire.headers import encode_header
from paceline.wire.token import new_token

_why = problem()
MB = 1e6
ROLE = "paceline.runtime.role_process"
SMALL_JOB = ["-w", "1", "-s", "1", "--checkpoint-every", "0", SMALL, "--epochs", "100000", "--sleep", "0.01"]
SAID_ONCE = "this line was said once"


@dataclass(slots=True)
class Scene:
    """A run on one host called a. `near` is the address of the strangers; `inside` enters the network of a node."""

    supervisor: Launched | Started
    agent: Launched | Started
    run: RunDir
    host: str
    port: int
    address_of_a: str
    near: str
    inside: Callable[[str], AbstractContextManager[None]]
    observer: Observer | None = None
    seen: dict[str, object] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def encrypted(self) -> bool:
        return not is_loopback(self.host)

    @property
    def token(self) -> bytes:
        return self.run.token()

    def version(self) -> int:
        with contextlib.suppress(TransportError, UsageError):
            if self.observer is None:
                self.observer = Observer(self.run.coordinator, self.token)
            return self.observer.status(timeout_s=0.5).version
        return -1

    def until_version(self, version: int) -> int:
        deadline = time.monotonic() + 40.0
        while (now := self.version()) < version:
            assert time.monotonic() < deadline, self.supervisor.out.read_text() + self.agent.out.read_text()
            time.sleep(0.02)
        return now

    def rss(self) -> int:
        """The memory of the supervisor, without its roles."""
        return int(psutil.Process(self.supervisor.process.pid).memory_info().rss)


@dataclass(slots=True)
class Started:
    """A command that was forked from a process that has loaded torch, with the members of `Launched` that are used."""

    command: Background
    out: Path

    @property
    def process(self) -> Process:
        return self.command.process

    def family(self) -> list[psutil.Process]:
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]


@contextmanager
def started(words: Sequence[object], folder: Path) -> Iterator[Started]:
    with background([*PACELINE, *words], folder, PACELINE_CACHE=str(folder / "cache")) as command:
        yield Started(command, Path(f"/proc/self/fd/{command.output.fileno()}"))
        command.process.send_signal(signal.SIGTERM)
        command.wait(20.0)


@contextmanager
def on_loopback(folder: Path) -> Iterator[Scene]:
    token = folder / "token"
    token.write_text(new_token().hex())
    port = free_port()
    address = f"127.0.0.1:{port}"
    words = ["run", "--dir", folder / "run", "--engine", "hosts", "--listen", address, "--token-file", token]
    dials = ["agent", address, "--token-file", token, "--name", "a", "--cores", "2"]
    with started(dials, folder) as agent, started([*words, *SMALL_JOB], folder) as supervisor:
        run = RunDir(folder / "run")
        host = "127.0.0.1"
        yield Scene(supervisor, agent, run, host, port, host, "127.0.0.2", lambda _: contextlib.nullcontext())


@contextmanager
def in_namespaces(folder: Path) -> Iterator[Scene]:
    with launched_warm(), HostCluster(folder, ["a", "strangers"], environment()) as cluster:
        supervisor, agent = cluster.start(*SMALL_JOB), cluster.agent("a")
        near, host = cluster.address("strangers"), cluster.address(SUPERVISOR)
        yield Scene(
            supervisor,
            agent,
            cluster.run_dir,
            host,
            7411,
            cluster.address("a"),
            near,
            cluster._network.inside,
        )


# ---------------------------------------------------------------- what strangers do


def wait_for(port: ZmqPort, kind: type) -> object:
    """The next event or message of this kind."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        event = port.recv(0.05)
        if isinstance(event, kind):
            return event
        if isinstance(event, Received) and isinstance(event.message, kind):
            return event.message
    raise AssertionError(f"no {kind.__name__} came")


@contextmanager
def agent_port(scene: Scene, name: str, address: str = "") -> Iterator[Callable[[Message], ZmqPort]]:
    """A peer that knows the token, as an agent that breaks the rules; gives a function that sends a message."""
    port = ZmqPort(f"agent/{name}", scene.token, local=False, one_port=True)
    try:
        port.connect(address or scene.address)
        up = wait_for(port, PeerUp)
        assert isinstance(up, PeerUp)

        def say(message: Message) -> ZmqPort:
            port.send(up.peer, message)
            return port

        yield say
    finally:
        port.close()


def enlist(scene: Scene, name: str, agent: str) -> Enlist:
    return Enlist(1, agent, facts_of(name, address=scene.near, versions=own_versions()), "/cache")


def attack_with_noise(scene: Scene) -> None:
    pour_noise(scene.address, random.Random(5), 200)


def attack_with_lengths(scene: Scene) -> None:
    """Every second stranger declares 64 MiB, the others as much as is allowed, and none ends what it declared."""
    with Strangers([(scene.host, scene.port)], 100, encrypted=scene.encrypted) as strangers:
        assert strangers.pour(10.0)
        scene.seen["memory under lengths"] = scene.rss()
        scene.seen["turned away"] = 100 - strangers.held


def attack_with_half_open_connections(scene: Scene) -> None:
    """Thousands of connections that send nothing; the system queues those that the supervisor has not accepted yet."""
    number = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 300)
    with contextlib.ExitStack() as held:
        for _ in range(number):
            silent = held.enter_context(socket.socket())
            silent.setblocking(False)
            silent.connect_ex((scene.host, scene.port))
        time.sleep(1.0)
        scene.seen["memory under half-open"] = scene.rss()
        scene.until_version(scene.version() + 1)


def attack_with_another_token(scene: Scene) -> None:
    """A port with another token, and a peer that has passed the encryption or the ticket but cannot prove the token."""
    other = ZmqPort("agent/x", new_token(), local=False, one_port=True)
    try:
        other.connect(scene.address)
        scene.seen["another token"] = wait_for(other, PeerDown)
    finally:
        other.close()
    with Dealer(scene.address, scene.token, encrypt=scene.encrypted).connect() as stranger:
        stranger.send(ClientHandshake("agent/x", scene.token).hello())
        stranger.answer(lambda: None)
        stranger.send(encode_control(Proof(bytes(32))))
        scene.seen["a wrong proof"] = decode_control(stranger.answer(lambda: None))


def attack_with_a_recording(scene: Scene) -> None:
    """Play all bytes of an agent again that joined, and said a line, through a proxy."""
    proxy = Proxy(scene.address, scene.near)
    port = ZmqPort("agent/b", scene.token, local=False, one_port=True)
    events: list[object] = []

    def until(kind: type) -> object:
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            proxy.pump()
            event = port.recv(0.005)
            found = event.message if isinstance(event, Received) else event
            events.append(found)
            if isinstance(found, kind):
                return found
        raise AssertionError(f"no {kind.__name__} came: {events}")

    try:
        port.connect(proxy.address)
        up = until(PeerUp)
        assert isinstance(up, PeerUp)
        port.send(up.peer, enlist(scene, "b", "b-1"))
        until(Enlisted)
        port.send(up.peer, Reports(1, (RoleLine("worker-7", 1, "OUT", SAID_ONCE),)))
        deadline = time.monotonic() + 10.0
        while SAID_ONCE not in scene.supervisor.out.read_text():
            assert time.monotonic() < deadline
            proxy.pump()
            port.recv(0.005)
    finally:
        port.close()
        proxy.close()
    recorded = bytes(proxy.sent)
    scene.seen["readable"] = SAID_ONCE.encode() in recorded
    scene.seen["replays that ended"] = replays_that_end(scene, recorded, 5)


def replays_that_end(scene: Scene, recorded: bytes, number: int) -> int:
    """How many connections the supervisor ends, of `number` that send the recorded bytes."""
    with contextlib.ExitStack() as stack:
        address = (scene.host, scene.port)
        opened = [stack.enter_context(socket.create_connection(address, timeout=8.0)) for _ in range(number)]
        for raw in opened:
            with contextlib.suppress(ConnectionError):
                raw.sendall(recorded)
        return sum(map(is_ended, opened))


def is_ended(raw: socket.socket) -> bool:
    """Whether the other end of a connection ends it, within its timeout."""
    try:
        while raw.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def attack_with_messages_that_no_agent_sends(scene: Scene) -> None:
    """Messages of other roles, before and after the peer has enlisted a host; reports that no agent makes."""
    with Dealer(scene.address, scene.token, encrypt=scene.encrypted).connect() as stranger:
        stranger.prove("worker-9/1", scene.token, lambda: None)
        for sample in SAMPLES:
            stranger.send(encode_header(sample))
        stranger.send(encode_header(StartRole("worker-0", 9, b"{}", "/", {})))
    lines = [RoleLine("../../escaped", 1, "OUT", "x"), RoleLine("a\0b", 1, "OUT", "x"), RoleLine("", 1, "OUT", "x")]
    lines.append(RoleLine("worker-7", 1, "NO STREAM", "an odd line"))
    with agent_port(scene, "c") as say:
        port = say(enlist(scene, "c", "c-1"))
        wait_for(port, Enlisted)
        for message in SAMPLES:
            if not getattr(message, "blocks", ()):
                say(message)
        ends = [RoleEnded(name, start, 1) for name in ("worker-0", "server-0", "coordinator") for start in (1, 2)]
        pieces = [SavedPiece(path, -1, b"x", True) for path in ("../escaped", "/tmp/escaped", "", "a\0b", "new")]
        say(Reports(1, (*lines, *ends, *pieces)))
        say(Reports(2**62, (RoleLine("worker-7", 1, "OUT", "a number that is not next"),)))
        say(AgentBeat(False))
        deadline = time.monotonic() + 10.0
        while "an odd line" not in scene.supervisor.out.read_text():
            assert time.monotonic() < deadline, scene.supervisor.out.read_text()
            time.sleep(0.02)


def attack_with_the_name_of_another(scene: Scene) -> None:
    with agent_port(scene, "a-thief") as say:
        scene.seen["the name of another"] = wait_for(say(enlist(scene, "a", "thief")), TurnedAway)


ATTACKS = (
    attack_with_noise,
    attack_with_lengths,
    attack_with_half_open_connections,
    attack_with_another_token,
    attack_with_a_recording,
    attack_with_messages_that_no_agent_sends,
    attack_with_the_name_of_another,
)


@pytest.fixture(scope="module", params=["loopback", "namespaces"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The run under all attacks, one after the other; commits go on after each of them."""
    if request.param == "namespaces" and _why is not None:
        pytest.skip(_why)
    make = {"loopback": on_loopback, "namespaces": in_namespaces}[request.param]
    with make(tmp_path_factory.mktemp(request.param)) as scene:
        with scene.inside("strangers"):
            scene.until_version(3)
            look_at_sockets(scene)
            play(scene)
        yield scene


def look_at_sockets(scene: Scene) -> None:
    """Note where each process listens, by what it is, and which of them use UDP."""
    where: dict[str, set[tuple[str, int]]] = {}
    udp: list[psutil.Process] = []
    for node, launched, own in ((SUPERVISOR, scene.supervisor, "supervisor"), ("a", scene.agent, "agent")):
        with scene.inside(node):
            for process in launched.family():
                words = process.cmdline()
                role = words[words.index(ROLE) + 2] if ROLE in words else f"child of the {own}"
                kind = own if process.pid == launched.process.pid else role
                where[kind] = where.get(kind, set()) | listening([process])
                udp += [process] if process.net_connections("udp") else []
    scene.seen["where"], scene.seen["udp"] = where, udp


def play(scene: Scene) -> None:
    scene.seen["memory"] = scene.rss()
    scene.seen["processes"] = {p.pid for p in (*scene.supervisor.family(), *scene.agent.family())}
    try:
        for attack in ATTACKS:
            version = scene.version()
            attack(scene)
            scene.until_version(version + 1)
    finally:
        if scene.observer is not None:
            scene.observer.close()
    scene.seen["memory at the end"] = scene.rss()
    scene.seen["processes at the end"] = {p.pid for p in (*scene.supervisor.family(), *scene.agent.family())}


def test_nothing_gets_in(scene: Scene) -> None:
    down, farewell = scene.seen["another token"], scene.seen["a wrong proof"]
    assert isinstance(down, PeerDown)
    assert "token" in down.reason
    assert isinstance(farewell, Farewell)
    assert farewell.rule == "token"
    assert scene.seen["readable"] is not scene.encrypted
    assert scene.seen["replays that ended"] == 5
    output = scene.supervisor.out.read_text()
    assert output.count(SAID_ONCE) == 1
    assert output.count("host b joins") == 1
    turned = scene.seen["the name of another"]
    assert isinstance(turned, TurnedAway)
    assert "give each host its own --name" in turned.reason
    assert not list(scene.run.path.parent.rglob("*escaped*"))
    assert not Path("/tmp/escaped").exists()


def test_memory_is_bounded(scene: Scene) -> None:
    usual = scene.seen["memory"]
    assert isinstance(usual, int)
    assert scene.seen["turned away"] == 50, "those that declared 64 MiB"
    for when in ("memory under lengths", "memory under half-open", "memory at the end"):
        grown = scene.seen[when]
        assert isinstance(grown, int)
        assert grown - usual < 50 * MB, when


def test_the_job_is_unharmed(scene: Scene) -> None:
    """Commits went on after each attack; the same processes run, and nobody has lost the agent."""
    assert scene.seen["processes at the end"] == scene.seen["processes"]
    output = scene.supervisor.out.read_text()
    assert "host a does not answer" not in output
    assert "host a is lost" not in output
    assert scene.agent.out.read_text().count("has reached the supervisor") == 1


def test_every_socket_listens_at_the_address_that_was_asked_for(scene: Scene) -> None:
    where = scene.seen["where"]
    assert isinstance(where, dict)
    assert where.pop("supervisor") == {(scene.host, scene.port)}
    assert {host for host, _ in where.pop("coordinator")} == {scene.host}
    for role in ("server-0", "worker-0"):
        assert {host for host, _ in where.pop(role)} <= {scene.address_of_a}
    assert where.pop("agent") == set(), "an agent only connects"
    assert not any(where.values()), "the other processes neither"
    assert scene.seen["udp"] == []


# ---------------------------------------------------------------- agents that dial an impostor


def serve_noise(listener: socket.socket, until: Callable[[], bool]) -> int:
    """Answer every connection with damaged greetings and endless bytes; returns how many bytes were taken."""
    rng, taken = random.Random(3), 0
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + bytes(32)
    huge = greeting + b"\x06" + (64 << 20).to_bytes(8)
    listener.settimeout(0.2)
    while not until():
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.settimeout(0.5)
            connection.sendall(rng.choice((b"", greeting, huge, b"HTTP/1.1 200 OK\r\n\r\n")))
            for _ in range(2000):
                taken += connection.send(rng.randbytes(1 << 15))
    return taken


def test_an_agent_refuses_an_impostor_that_sends_garbage(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(new_token().hex())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        words = ["agent", address, "--token-file", token, "--name", "a", "--dir", "cache"]
        with background([*PACELINE, *words], tmp_path) as agent:
            seen: list[int] = []

            def is_over() -> bool:
                with contextlib.suppress(psutil.Error):
                    seen.append(psutil.Process(agent.process.pid).memory_info().rss)
                return agent.process.poll() is not None

            deadline = time.monotonic() + 20.0
            serve_noise(listener, lambda: is_over() or time.monotonic() > deadline)
            ended = agent.wait(5.0)
    assert ended.code == 2, ended.out
    assert "refuse each other" in ended.out
    assert max(seen) - seen[0] < 50 * MB


def test_an_agent_refuses_a_supervisor_with_another_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(new_token().hex())
    impostor = ZmqPort("supervisor/1", new_token(), listen="127.0.0.1", local=False, one_port=True)
    try:
        address = str(impostor.address).removeprefix("tcp://")
        words = ["agent", address, "--token-file", token, "--name", "a", "--dir", "cache"]
        with background([*PACELINE, *words], tmp_path) as agent:
            while agent.process.poll() is None:
                assert not isinstance(impostor.recv(0.05), Received)
            ended = agent.wait(5.0)
    finally:
        impostor.close()
    assert ended.code == 2, ended.out
    assert "give both the same --token-file" in ended.out
