"""When a request to leave may interrupt."""

from __future__ import annotations

import pytest

from paceline.worker.preemption import Preempted, Preemption


def test_in_the_script_it_interrupts_at_once() -> None:
    preemption = Preemption()
    with pytest.raises(Preempted):
        preemption.request()


def test_a_block_is_finished_first() -> None:
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


def test_a_wait_ends_between_two_events() -> None:
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


def test_an_error_of_the_block_takes_precedence() -> None:
    preemption = Preemption()

    def fail() -> None:
        with preemption:
            preemption.request()
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_every_later_use_raises_again() -> None:
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


def test_except_exception_does_not_catch_it() -> None:
    assert not issubclass(Preempted, Exception)
