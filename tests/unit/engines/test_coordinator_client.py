"""An engine's connection to a coordinator that may be absent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.kit.fake_coordinator import TOKEN, Answer, FakeCoordinator, answer_all, answer_nothing, fake_coordinator

from paceline.engines.coordinator_client import CoordinatorClient
from paceline.messages import (
    Drain,
    Exited,
    Finish,
    HostLost,
    Message,
    Ok,
    Refused,
    Scale,
    StatusReply,
    StatusRequest,
    Summary,
)
from paceline.messages.status import RunSummary, Status

announced: list[str | None] = [None]


@pytest.fixture
def client() -> Iterator[CoordinatorClient]:
    announced[0] = None
    opened = CoordinatorClient(lambda: announced[0], TOKEN)
    yield opened
    opened.close()


def until(done: Callable[[], bool], client: CoordinatorClient, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        client.pump()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pump_does_not_wait_without_a_coordinator(client: CoordinatorClient) -> None:
    client.report("worker-0", 7, -9)
    began = time.monotonic()
    for _ in range(20):
        assert not client.pump()
    assert time.monotonic() - began < 0.5
    assert not client.heard
    assert not client.settled
    with fake_coordinator(answer_all({"step": 3})) as coordinator:
        announced[0] = coordinator.address
        until(lambda: client.heard, client)
        assert client.settled
        assert isinstance(coordinator.heard[0], Exited), "reports are sent before requests"


def test_a_report_without_an_answer_is_sent_to_the_next_coordinator(client: CoordinatorClient) -> None:
    first = FakeCoordinator(answer_nothing)
    announced[0] = first.address
    client.report("worker-0", 7, -9)
    client.report("worker-1", 8, -9)
    until(lambda: bool(first.heard), client)
    first.close()
    assert not client.settled
    with fake_coordinator(answer_all({})) as second:
        announced[0] = second.address
        until(lambda: client.settled, client)
        assert [m.name for m in second.heard if isinstance(m, Exited)] == ["worker-0", "worker-1"]


def test_look_returns_only_a_status_newer_than_its_call(client: CoordinatorClient) -> None:
    status = {"step": 1}
    with fake_coordinator(answer_all(status)) as coordinator:
        announced[0] = coordinator.address
        assert client.look(5.0)
        status["step"] = 2
        assert client.look(5.0)
        assert client.status == Status(step=2)


def test_reports_and_statuses_do_not_wait_for_a_slow_summary(client: CoordinatorClient) -> None:
    ready: list[bytes] = []

    def slow(message: Message) -> Message | None:
        if isinstance(message, Finish):
            return Summary(message.req, ready[0]) if ready else None
        return answer_all({"step": 1})(message)

    with fake_coordinator(slow) as coordinator:
        announced[0] = coordinator.address
        assert client.finish() is None
        until(lambda: any(isinstance(m, Finish) for m in coordinator.heard), client)
        client.report("server-0", 9, -9)
        until(lambda: client.settled, client, 1.0)
        assert client.look(1.0)
        assert client.finish() is None
        ready.append(b'{"state": "done"}')
        found: list[RunSummary] = []

        def finished() -> bool:
            found.extend(filter(None, [client.finish()]))
            return bool(found)

        until(finished, client)
        assert found == [RunSummary(state="done")]
        client.go_on()
        assert not client.finishing


def test_a_report_that_is_refused_is_not_repeated(client: CoordinatorClient) -> None:
    def picky(message: Message) -> Message | None:
        if isinstance(message, Scale):
            return Refused(message.req, "usage", "no")
        if isinstance(message, Exited | HostLost | Drain):
            return Ok(message.req)
        return StatusReply(getattr(message, "req", 0), b"{}")

    answer: Answer = picky
    with fake_coordinator(answer) as coordinator:
        announced[0] = coordinator.address
        client.scale(3)
        client.report("worker-0", 7, -9)
        client.host_lost("b", "its agent is gone")
        client.drain("c", undo=True)
        until(lambda: client.settled, client)
        heard = [m for m in coordinator.heard if not isinstance(m, StatusRequest)]
        assert [type(m).__name__ for m in heard] == ["Scale", "Exited", "HostLost", "Drain"]
        assert [getattr(m, "host", "") for m in heard][2:] == ["b", "c"]


def test_the_refusal_of_a_drain_is_kept_for_the_user(client: CoordinatorClient) -> None:
    def picky(message: Message) -> Message | None:
        if isinstance(message, Drain):
            return Refused(message.req, "host", f"{message.host} is the only host")
        return StatusReply(getattr(message, "req", 0), b"{}")

    with fake_coordinator(picky) as coordinator:
        announced[0] = coordinator.address
        client.drain("a")
        client.drain("b", undo=True)
        until(lambda: client.settled, client)
        assert client.refused_drains() == {"a": "the run refuses the request: a is the only host"}
        assert client.refused_drains() == {}, "each refusal is told once"
        assert all(m.others for m in coordinator.heard if isinstance(m, Drain))
