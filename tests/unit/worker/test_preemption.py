"""When a notice to leave may interrupt."""

from __future__ import annotations

import pytest

from paceline.worker.preemption import Notice, Preempted


def test_in_the_script_it_interrupts_at_once() -> None:
    notice = Notice()
    with pytest.raises(Preempted):
        notice.give()


def test_half_done_things_are_finished_first() -> None:
    notice, done = Notice(), []

    def work() -> None:
        with notice:
            with notice:
                notice.give()
                done.append("inner")
            done.append("outer")
        done.append("after")

    with pytest.raises(Preempted):
        work()
    assert done == ["inner", "outer"]


def test_a_wait_ends_between_two_events() -> None:
    notice = Notice()
    events: list[str] = []

    def wait() -> None:
        with notice:
            while len(events) < 10:
                notice.check()
                events.append("one")
                if len(events) == 3:
                    notice.give()

    with pytest.raises(Preempted):
        wait()
    assert len(events) == 3


def test_an_error_of_the_block_goes_first() -> None:
    notice = Notice()

    def fail() -> None:
        with notice:
            notice.give()
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_script_that_swallows_it_gets_no_further() -> None:
    notice = Notice()
    with pytest.raises(Preempted):
        notice.give()
    for _ in range(2):
        with pytest.raises(Preempted):
            notice.check()
        with pytest.raises(Preempted), notice:
            pass


def test_nothing_interrupts_one_that_is_leaving() -> None:
    notice = Notice()
    with pytest.raises(Preempted):
        notice.give()
    notice.accept()
    notice.check()
    with notice:
        notice.give()


def test_it_is_not_an_exception_that_scripts_catch() -> None:
    assert not issubclass(Preempted, Exception)
