"""When a request to leave may interrupt the script."""

from __future__ import annotations

import pytest

from paceline.worker.preemption import Preempted, Preemption


def test_a_request_interrupts_the_script_at_once() -> None:
    preemption = Preemption()
    with pytest.raises(Preempted):
        preemption.request()


def test_a_request_within_a_protected_block_interrupts_after_the_block() -> None:
    preemption, done = Preemption(), []

    def work() -> None:
        with preemption:
            with preemption:
                preemption.request()
                done.append("inner")
            done.append("outer")
        done.append("after")

    with pytest.raises(Preempted):
        work()
    assert done == ["inner", "outer"]


def test_a_wait_ends_at_its_next_check_after_a_request() -> None:
    preemption = Preemption()
    events: list[str] = []

    def wait() -> None:
        with preemption:
            while len(events) < 10:
                preemption.check()
                events.append("one")
                if len(events) == 3:
                    preemption.request()

    with pytest.raises(Preempted):
        wait()
    assert len(events) == 3


def test_an_error_of_a_protected_block_takes_precedence_over_the_request() -> None:
    preemption = Preemption()

    def fail() -> None:
        with preemption:
            preemption.request()
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_every_later_check_raises_preempted_again() -> None:
    preemption = Preemption()
    with pytest.raises(Preempted):
        preemption.request()
    for _ in range(2):
        with pytest.raises(Preempted):
            preemption.check()
        with pytest.raises(Preempted), preemption:
            pass


def test_a_worker_that_leaves_is_not_interrupted() -> None:
    preemption = Preemption()
    with pytest.raises(Preempted):
        preemption.request()
    preemption.accept()
    preemption.check()
    with preemption:
        preemption.request()


def test_except_exception_does_not_catch_preempted() -> None:
    assert not issubclass(Preempted, Exception)
