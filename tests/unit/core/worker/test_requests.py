"""Requests are repeated until they are answered, in one order, and not before they are due."""

from __future__ import annotations

from tests.kit.core import fence

from paceline.core.effects import Send
from paceline.core.worker.requests import CoordinatorRequests
from paceline.core.worker.server_requests import ServerRequests
from paceline.messages import Pull, Push, Register, Turn


class Open:
    """Requests to the coordinator and to servers, repeated in the order of a worker's tick."""

    def __init__(self) -> None:
        self.coordinator = CoordinatorRequests(1, 2.0)
        self.servers = ServerRequests(2.0)

    def push(self, server: str, payload: tuple[object, ...], now: float) -> Push:
        message = Push(self.coordinator.next_req(), 0, 1, 3, 0, fence(5), 2, ())
        self.servers.push(server, message, payload, now)
        return message

    def pull(self, server: str, now: float) -> None:
        self.servers.pull(server, Pull(self.coordinator.next_req(), 0, 1, 4), now)

    def ask(self, now: float) -> None:
        self.servers.forget_pulls()
        self.coordinator.ask(Turn(self.coordinator.next_req(), 0, 0), now)

    def repeat(self, now: float, *, waiting: bool = False) -> list[Send]:
        sends = self.coordinator.repeat(now, waiting=waiting, progress=0, declared=0)
        return sends + self.servers.repeat(now) + self.coordinator.repeat_given_back(now)


def busy() -> Open:
    """Return a worker's requests: one of every kind is open, each sent at another time."""
    opened = Open()
    opened.ask(2.5)
    opened.coordinator.give_back(fence(9), 0.0)
    opened.push("s1", ("gradient",), 0.5)
    opened.push("s0", (), 0.5)
    opened.pull("s1", 1.0)
    opened.pull("s0", 1.5)
    opened.coordinator.place(1, 3.0)
    req = opened.coordinator.next_req()
    opened.coordinator.register(Register(req, "worker", "worker-0", 1, "here"), 3.5)
    return opened


def names(sends: list[Send]) -> list[tuple[str, str]]:
    return [(type(send.message).__name__, send.to) for send in sends]


COORDINATOR = "coordinator"
EVERYTHING = [
    ("Register", COORDINATOR),
    ("PlacementRequest", COORDINATOR),
    ("Turn", COORDINATOR),
    ("Pull", "s1"),
    ("Pull", "s0"),
    ("Push", "s1"),
    ("Push", "s0"),
    ("GiveBack", COORDINATOR),
]


def test_every_open_request_is_repeated_and_the_registration_comes_first() -> None:
    opened = busy()
    sends = opened.repeat(9.0)
    assert names(sends) == EVERYTHING
    assert [send.payload for send in sends if isinstance(send.message, Push)] == [("gradient",), ()]
    assert opened.repeat(10.9) == [], "all requests were repeated just now"
    assert names(opened.repeat(11.0)) == EVERYTHING


def test_each_request_has_its_own_time() -> None:
    opened = busy()
    assert opened.repeat(1.9) == []
    assert names(opened.repeat(2.0)) == [("GiveBack", COORDINATOR)]
    assert names(opened.repeat(3.0)) == [("Pull", "s1"), ("Push", "s1"), ("Push", "s0")]
    assert names(opened.repeat(4.5)) == [("Turn", COORDINATOR), ("Pull", "s0"), ("GiveBack", COORDINATOR)]


def test_an_answered_turn_is_repeated_only_while_the_worker_waits_to_read() -> None:
    opened = Open()
    opened.ask(0.0)
    opened.coordinator.answer_turn()
    assert opened.repeat(2.0) == []
    assert names(opened.repeat(2.0, waiting=True)) == [("Turn", COORDINATOR)]


def test_a_new_turn_drops_the_reads_of_the_turn_before() -> None:
    opened = busy()
    opened.coordinator.answer_turn()
    opened.ask(9.0)
    assert not opened.coordinator.answered
    left = [("Register", COORDINATOR), ("Push", "s1"), ("Push", "s0"), ("GiveBack", COORDINATOR)]
    assert names(opened.repeat(10.0)) == left, "pushes and attempts given back are of the turns before"


def test_a_server_that_comes_back_gets_its_open_requests_at_once() -> None:
    opened = busy()
    assert names(opened.servers.greet("s1", 8.0)) == [("Pull", "s1"), ("Push", "s1")]
    again = names(opened.repeat(9.0))
    assert again == [pair for pair in EVERYTHING if pair[1] != "s1"], "these requests were repeated just now"
    assert opened.servers.greet("s2", 8.0) == []


def test_a_push_can_be_repeated_sooner() -> None:
    opened = Open()
    message = opened.push("s0", (), 0.0)
    opened.servers.retry_push(message.req, 1.0, 0.25)
    assert opened.repeat(1.2) == []
    assert names(opened.repeat(1.25)) == [("Push", "s0")]


def test_pushes_to_servers_outside_the_placement_are_dropped() -> None:
    opened = busy()
    opened.servers.forget_pushes_except({"s0": "there"})
    assert [send.to for send in opened.servers.repeat(9.0) if isinstance(send.message, Push)] == ["s0"]
    assert len(opened.servers.unacked) == 1


def test_large_requests_are_repeated_less_and_less_often_until_the_server_comes_back() -> None:
    opened = Open()
    opened.push("s0", (), 0.0)
    opened.pull("s0", 0.0)
    opened.coordinator.give_back(fence(9), 0.0)
    times: dict[str, list[int]] = {"Push": [], "Pull": [], "GiveBack": []}
    for now in range(1, 25):
        for name, _ in names(opened.repeat(float(now))):
            times[name].append(now)
    assert times["Push"] == times["Pull"] == [2, 4, 8, 16, 24], "a slow link is not filled with repetitions"
    assert times["GiveBack"] == list(range(2, 25, 2))
    assert len(opened.servers.greet("s0", 25.0)) == 2
    assert names(opened.repeat(27.0))[:2] == [("Pull", "s0"), ("Push", "s0")], "the intervals restart"
