"""An observer and its requests, while the coordinator stops, restarts and moves."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest
from tests.kit.fake_coordinator import TOKEN, FakeCoordinator, answer_all, answer_nothing, fake_coordinator

from paceline.clients.observer import Observer
from paceline.errors import AuthenticationError, DeadlineError, UsageError
from paceline.messages import Drain, Exited, Message, Refused, Scale, Stop
from paceline.messages.status import RunSummary, Status
from paceline.wire.handshake import ClientHandshake
from paceline.wire.token import new_token


def port_of(address: str) -> int:
    return urlsplit(address).port or 0


def test_every_request_gets_its_reply() -> None:
    with fake_coordinator(answer_all({"state": "running"})) as coordinator:
        observer = Observer(coordinator.address, TOKEN)
        assert observer.status() == Status(state="running")
        observer.exited("worker-1", 7, -9)
        observer.scale(3)
        observer.stop(12, "enough")
        observer.drain("b")
        observer.drain("b", undo=True)
        assert observer.finish() == RunSummary(state="running")
        observer.close()
        heard = [m for m in coordinator.heard if isinstance(m, Exited | Scale | Stop | Drain)]
    drains = [Drain(5, "b"), Drain(6, "b", True)]
    assert heard == [Exited(2, "worker-1", 7, -9), Scale(3, 3), Stop(4, "enough", 12, False), *drains]


def test_a_request_without_a_coordinator_ends_at_its_deadline() -> None:
    observer = Observer(lambda: None, TOKEN)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match="the coordinator did not report its status"):
        observer.status(timeout_s=0.3)
    assert time.monotonic() - began < 2.0
    observer.close()


def test_a_refused_request_raises() -> None:
    def refuse(message: Message) -> Message | None:
        return Refused(message.req, "usage", "no more workers here") if isinstance(message, Scale) else None

    with fake_coordinator(refuse) as coordinator:
        observer = Observer(coordinator.address, TOKEN)
        with pytest.raises(UsageError, match="no more workers here"):
            observer.scale(3)
        observer.close()


def test_a_refusal_that_comes_before_the_first_frame_is_sent_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ connects in its own thread. On a busy machine it can be refused before `hello` is handed to it."""
    hello = ClientHandshake.hello

    def late(handshake: ClientHandshake) -> bytes:
        time.sleep(0.2)
        return hello(handshake)

    monkeypatch.setattr(ClientHandshake, "hello", late)
    with fake_coordinator(answer_all({})) as coordinator:
        observer = Observer(coordinator.address, new_token())
        try:
            with pytest.raises(AuthenticationError, match="different job tokens"):
                observer.status(timeout_s=2.0)
        finally:
            observer.close()


def test_a_request_is_sent_again_to_a_coordinator_that_restarts_at_its_address() -> None:
    first = FakeCoordinator(answer_nothing)
    observer = Observer(first.address, TOKEN)
    try:
        with pytest.raises(DeadlineError):
            observer.status(timeout_s=0.5)
        observer.post(lambda req: Exited(req, "worker-0", 1, -9))
        assert observer.poll(0.3) is None
        first.close()
        assert observer.poll(0.3) is None
        with fake_coordinator(answer_all({}), port_of(first.address)) as second:
            began = time.monotonic()
            while observer.poll(0.05) is None:
                assert time.monotonic() - began < 5.0
            assert time.monotonic() - began < 1.0
            assert [type(m).__name__ for m in second.heard] == ["Exited"]
    finally:
        first.close()
        observer.close()


def test_a_coordinator_that_restarts_at_another_address_is_found() -> None:
    first = FakeCoordinator(answer_all({"step": 1}))
    announced = [first.address]
    observer = Observer(lambda: announced[0], TOKEN)
    try:
        assert observer.status() == Status(step=1)
        first.close()
        with fake_coordinator(answer_all({"step": 2})) as second:
            announced[0] = second.address
            began = time.monotonic()
            assert observer.status() == Status(step=2)
            assert time.monotonic() - began < 1.5
    finally:
        first.close()
        observer.close()


def test_another_role_at_the_old_address_is_not_taken_for_the_coordinator() -> None:
    first = FakeCoordinator(answer_all({"step": 1}))
    announced = [first.address]
    observer = Observer(lambda: announced[0], TOKEN)
    try:
        observer.status()
        first.close()
        with (
            fake_coordinator(answer_all({"step": 9}), port_of(first.address), node="server-0/1") as server,
            fake_coordinator(answer_all({"step": 2})) as second,
        ):
            observer.post(lambda req: Exited(req, "worker-0", 1, -9))
            assert observer.poll(0.5) is None
            announced[0] = second.address
            assert observer.status() == Status(step=2)
            assert server.heard == []
    finally:
        first.close()
        observer.close()
