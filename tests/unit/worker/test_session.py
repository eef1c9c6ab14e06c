"""A worker's session: requests, restarted coordinators, moved servers, and leaving."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from paceline.core.worker.reachability import ServerReachability
from paceline.core.worker.turn import WorkerState
from paceline.errors import ClusterLostError, DeadlineError, JobRewoundError, JobStoppedError, MismatchError
from paceline.messages import (
    Abort,
    Bye,
    Claim,
    Claimed,
    Declare,
    Message,
    Ok,
    Prepare,
    Prepared,
    Reachable,
    Refused,
    Register,
    Turn,
    Unreachable,
    ValidatorSpec,
    Welcome,
)
from paceline.transport.base import PeerUp, Received
from paceline.transport.inproc import InprocHub, InprocPort
from paceline.types import ModelSpec, OptimizerSpec, Placement
from paceline.worker.preemption import Preempted, Preemption
from paceline.worker.session import Session, error_of

Answer = Callable[[Message], Message | None]
DECLARE = ValidatorSpec(0, "accuracy", 1, 10, 10)


class Coordinators:
    """Coordinators on a hub, one after the other. `seen` has the number of the coordinator and the message's name."""

    def __init__(self, hub: InprocHub) -> None:
        self.hub = hub
        self.number = 0
        self.seen: list[tuple[int, str]] = []
        self.messages: list[Message] = []
        self.port: InprocPort | None = None
        hub.add_pump(self._pump)

    def start(self, answer: Answer, listen: str = "coordinator") -> str:
        self.number += 1
        self.answer = answer
        self.port = self.hub.port(f"coordinator/{self.number}", listen=listen)
        assert self.port.address is not None
        return self.port.address

    def kill(self) -> None:
        assert self.port is not None
        self.port.close()
        self.port = None

    def _pump(self) -> bool:
        busy = False
        while self.port is not None and (event := self.port.recv(0)) is not None:
            busy = True
            if isinstance(event, Received):
                self.seen.append((self.number, type(event.message).__name__))
                self.messages.append(event.message)
                reply = self.answer(event.message)
                if reply is not None and self.port is not None:
                    self.port.send(event.peer, reply)
        return busy


def welcome(message: Message, generation: int = 1) -> Message | None:
    return Welcome(message.req, generation, 0, None, 0.5, 3.0) if isinstance(message, Register) else None


def ok(message: Message) -> Message | None:
    return welcome(message) or Ok(getattr(message, "req", 0))


@pytest.fixture
def hub() -> InprocHub:
    return InprocHub()


@pytest.fixture
def coordinators(hub: InprocHub) -> Iterator[Coordinators]:
    made = Coordinators(hub)
    yield made
    if made.port is not None:
        made.kill()


Open = Callable[..., Session]


@pytest.fixture
def opened(hub: InprocHub, coordinators: Coordinators) -> Iterator[Open]:
    ports = []

    def make(answer: Answer = ok, **options: object) -> Session:
        address = coordinators.start(answer)
        port = hub.port("worker-0/1")
        ports.append(port)
        session = Session(port, Register(1, "worker", "worker-0", 1, "here"), timeout_s=5.0, **options)  # type: ignore[arg-type]
        session.open(address)
        coordinators.seen.clear()
        return session

    yield make
    for port in ports:
        port.close()


def declare(session: Session) -> None:
    session.ask(lambda req: Declare(req, DECLARE), Ok)


def test_an_evicted_worker_registers_again_and_repeats_its_request(opened: Open, coordinators: Coordinators) -> None:
    def answer(message: Message) -> Message | None:
        if isinstance(message, Declare) and coordinators.seen.count((1, "Register")) == 0:
            return Refused(message.req, "unknown", "register first")
        return ok(message)

    session = opened(answer)
    declare(session)
    assert [name for _, name in coordinators.seen] == ["Declare", "Register", "Declare"]
    session.say(session.core.tick(1e9))
    coordinators.hub.pump()
    assert coordinators.seen[-1][1] == "Declare", "the new registration was answered, and is not repeated"


def test_a_worker_registers_with_another_coordinator_before_it_asks(opened: Open, coordinators: Coordinators) -> None:
    def die(message: Message) -> Message | None:
        coordinators.kill()
        coordinators.start(lambda m: welcome(m, 2) or ok(m))
        return None

    session = opened(lambda message: welcome(message) or die(message))
    declare(session)
    assert coordinators.seen == [(1, "Declare"), (2, "Register"), (2, "Declare")]
    assert session.core.registration.generation == 2
    register = next(m for m in coordinators.messages[::-1] if isinstance(m, Register))
    assert (register.name, register.progress, register.leases) == ("worker-0", -1, ())


def test_a_coordinator_at_another_address_is_found(hub: InprocHub, opened: Open, coordinators: Coordinators) -> None:
    announced = ["inproc://coordinator"]

    def die(message: Message) -> Message | None:
        coordinators.kill()
        announced[0] = coordinators.start(ok, listen="elsewhere")
        return None

    session = opened(lambda message: welcome(message) or die(message), find=lambda: announced[0])
    declare(session)
    assert coordinators.seen == [(1, "Declare"), (2, "Register"), (2, "Declare")]


def test_an_open_turn_is_repeated_to_another_coordinator(opened: Open, coordinators: Coordinators) -> None:
    def die(message: Message) -> Message | None:
        coordinators.kill()
        coordinators.start(lambda m: welcome(m, 2) or (Abort(2, "stopped", "seen") if isinstance(m, Turn) else None))
        return None

    session = opened(lambda message: welcome(message) or die(message))
    session.say(session.core.ask(0.0, 0))
    with pytest.raises(JobStoppedError, match="seen"):
        session.wait(frozenset({WorkerState.COMPUTING}), "grant a lease")
    assert coordinators.seen == [(1, "Turn"), (2, "Register"), (2, "Turn")]


def test_a_silent_coordinator_ends_a_wait_with_the_open_request(opened: Open, coordinators: Coordinators) -> None:
    silence = [0.0]

    def die(message: Message) -> Message | None:
        coordinators.kill()
        silence[0] = 6.0
        return None

    session = opened(lambda message: welcome(message) or die(message), silent_s=lambda: silence[0])
    with pytest.raises(
        DeadlineError, match=r"the coordinator did not take the validation \(coordinator/1: .*\) within 6\.0 s"
    ):
        declare(session)


def test_a_worker_connects_to_the_servers_of_a_new_placement(
    hub: InprocHub, opened: Open, coordinators: Coordinators
) -> None:
    servers = {f"server-{i}/1": hub.port(f"server-{i}/1", listen=f"server-{i}") for i in range(3)}
    model = ModelSpec((), OptimizerSpec("SGD", ()))

    def placement(epoch: int, *names: str) -> Placement:
        return Placement(epoch, names, {n: servers[n].address or "" for n in names})

    def answer(message: Message) -> Message | None:
        if isinstance(message, Prepare):
            return Prepared(message.req, 1, 0, placement(1, "server-0/1", "server-1/1"))
        if isinstance(message, Claim):  # the answer to any request may follow a new placement
            assert coordinators.port is not None
            coordinators.port.send("worker-0/1", Prepared(0, 1, 1, placement(2, "server-1/1", "server-2/1")))
            return Claimed(message.req, True)
        return ok(message)

    def peers(name: str) -> list[str]:
        return [type(e).__name__ for e in iter(lambda: servers[name].recv(0), None)]

    session = opened(answer)
    session.place(session.ask(lambda req: Prepare(req, model), Prepared))
    declare(session)
    assert [peers(name) for name in servers] == [["PeerUp"], ["PeerUp"], []]
    session.ask(lambda req: Claim(req, "save"), Claimed)
    assert [peers(name) for name in servers] == [["PeerDown"], [], ["PeerUp"]]
    for port in servers.values():
        port.close()


def test_another_role_at_the_coordinators_address_is_ignored(hub: InprocHub, coordinators: Coordinators) -> None:
    """The operating system may give the port of a dead coordinator to another role."""
    other = hub.port("server-0/1", listen="coordinator")
    port = hub.port("worker-0/1")
    session = Session(
        port, Register(1, "worker", "worker-0", 1, "here"), timeout_s=0.1, silent_s=iter([0.0, 1.0]).__next__
    )
    with pytest.raises(DeadlineError, match="did not accept a session at inproc://coordinator"):
        session.open("inproc://coordinator")
    assert isinstance(other.recv(0), PeerUp)
    assert other.recv(0) is None, "the worker sent nothing to the other role"
    port.close()
    other.close()


def test_a_request_to_leave_ends_a_wait_and_the_worker_says_bye(opened: Open, coordinators: Coordinators) -> None:
    preemption = Preemption()

    def tell(message: Message) -> Message | None:
        if isinstance(message, Bye):
            return Ok(message.req)
        preemption.request()  # the worker waits, so the request does not interrupt here
        return None

    session = opened(lambda message: welcome(message) or tell(message), preemption=preemption)
    with pytest.raises(Preempted):
        declare(session)
    with pytest.raises(Preempted):
        session.say([])
    session.leave()
    assert coordinators.seen == [(1, "Declare"), (1, "Bye")]


def test_a_worker_can_leave_even_if_no_coordinator_answers(opened: Open, coordinators: Coordinators) -> None:
    session = opened(silent_s=lambda: 100.0)
    coordinators.kill()
    session.leave()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("rewound", JobRewoundError),
        ("lost", ClusterLostError),
        ("stopped", JobStoppedError),
        ("script", MismatchError),
    ],
)
def test_each_kind_of_abort_has_its_error(kind: str, error: type[Exception]) -> None:
    assert type(error_of(Abort(1, kind, "why"))) is error


def test_an_unreachable_server_is_reported_until_it_is_reached(
    hub: InprocHub, opened: Open, coordinators: Coordinators
) -> None:
    """The coordinator decides whether to do without the server or the worker."""
    session = opened()
    session._reachability = ServerReachability(0.3)
    here = hub.port("server-1/1", listen="server-1")
    addresses = {"server-0/1": "inproc://server-0", "server-1/1": "inproc://server-1"}
    session.place(Prepared(1, 1, 0, Placement(3, tuple(addresses), addresses)))

    def reports() -> list[Message]:
        return [m for m in coordinators.messages if isinstance(m, Unreachable | Reachable)]

    session._run_until(lambda: bool(reports()), "a report")
    (report,) = reports()
    assert isinstance(report, Unreachable)
    assert (report.peer, report.epoch) == ("server-0/1", 3)
    late = hub.port("server-0/1", listen="server-0")
    session._run_until(lambda: reports()[-1] == Reachable("server-0/1"), "a report")
    late.close()
    session._run_until(lambda: isinstance(reports()[-1], Unreachable), "another report")
    here.close()
