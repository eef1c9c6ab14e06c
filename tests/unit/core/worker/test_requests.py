"""What a worker has asked is said again until it is answered, in one order, and no sooner than it should be."""

from __future__ import annotations

from tests.kit.core import fence

from paceline.core.effects import Send
from paceline.core.worker.requests import Asking
from paceline.messages import Pull, Push, Register, Turn


def push(asking: Asking) -> Push:
    return Push(asking.next_req(), 0, 1, 3, 0, fence(5), 2, ())


def pull(asking: Asking) -> Pull:
    return Pull(asking.next_req(), 0, 1, 4)


def busy() -> Asking:
    """Everything is under way at once: asked the other way round, half a second apart."""
    asking = Asking(1, 2.0)
    asking.ask(Turn(asking.next_req(), 0, 0), 2.5)
    asking.give_back(fence(9), 0.0)
    asking.push("s1", push(asking), ("gradient",), 0.5)
    asking.push("s0", push(asking), (), 0.5)
    asking.pull("s1", pull(asking), 1.0)
    asking.pull("s0", pull(asking), 1.5)
    asking.place(1, 3.0)
    asking.rejoin(Register(asking.next_req(), "worker", "worker-0", 1, "here"), 3.5)
    return asking


def said(sends: list[Send]) -> list[tuple[str, str]]:
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


def test_everything_is_said_again_who_this_is_first() -> None:
    asking = busy()
    sends = asking.repeat(9.0, waiting=False)
    assert said(sends) == EVERYTHING
    assert [send.payload for send in sends if isinstance(send.message, Push)] == [("gradient",), ()]
    assert asking.repeat(10.9, waiting=False) == [], "that was said just now"
    assert said(asking.repeat(11.0, waiting=False)) == EVERYTHING


def test_each_request_has_its_own_time() -> None:
    asking = busy()
    assert asking.repeat(1.9, waiting=False) == []
    assert said(asking.repeat(2.0, waiting=False)) == [("GiveBack", COORDINATOR)]
    assert said(asking.repeat(3.0, waiting=False)) == [("Pull", "s1"), ("Push", "s1"), ("Push", "s0")]
    assert said(asking.repeat(4.5, waiting=False)) == [("Turn", COORDINATOR), ("Pull", "s0"), ("GiveBack", COORDINATOR)]


def test_a_turn_that_was_answered_is_said_again_only_by_a_worker_that_can_only_wait() -> None:
    asking = Asking(1, 2.0)
    asking.ask(Turn(2, 0, 0), 0.0)
    asking.answered = True
    assert asking.repeat(2.0, waiting=False) == []
    assert said(asking.repeat(2.0, waiting=True)) == [("Turn", COORDINATOR)]


def test_the_next_turn_has_no_use_for_what_the_last_one_was_looking_for() -> None:
    asking = busy()
    asking.answered = True
    asking.ask(Turn(asking.next_req(), 0, 0), 9.0)
    assert not asking.answered
    left = [("Register", COORDINATOR), ("Push", "s1"), ("Push", "s0"), ("GiveBack", COORDINATOR)]
    assert said(asking.repeat(10.0, waiting=False)) == left, "pushes and what was given back are of the turns before"


def test_a_peer_that_comes_back_hears_at_once_what_it_has_not_answered() -> None:
    asking = busy()
    assert said(asking.greet("s1", 8.0)) == [("Pull", "s1"), ("Push", "s1")]
    again = said(asking.repeat(9.0, waiting=False))
    assert again == [pair for pair in EVERYTHING if pair[1] != "s1"], "that was said just now"
    assert asking.greet("s2", 8.0) == []


def test_a_push_may_be_said_again_sooner() -> None:
    asking = Asking(1, 2.0)
    message = push(asking)
    asking.push("s0", message, (), 0.0)
    asking.hurry(asking.pushes[message.req], 1.0, 0.25)
    assert asking.repeat(1.2, waiting=False) == []
    assert said(asking.repeat(1.25, waiting=False)) == [("Push", "s0")]


def test_pushes_to_servers_that_are_no_more_are_forgotten() -> None:
    asking = busy()
    asking.forget_gone({"s0": "there"})
    assert [asked.to for asked in asking.pushes.values()] == ["s0"]


def test_what_is_large_is_said_again_ever_more_seldom_until_the_peer_comes_back() -> None:
    asking = Asking(1, 2.0)
    asking.push("s0", push(asking), (), 0.0)
    asking.pull("s0", pull(asking), 0.0)
    asking.give_back(fence(9), 0.0)
    times: dict[str, list[int]] = {"Push": [], "Pull": [], "GiveBack": []}
    for now in range(1, 25):
        for name, _ in said(asking.repeat(float(now), waiting=False)):
            times[name].append(now)
    assert times["Push"] == times["Pull"] == [2, 4, 8, 16, 24], "a slow link is not filled with repetitions"
    assert times["GiveBack"] == list(range(2, 25, 2))
    assert len(asking.greet("s0", 25.0)) == 2
    assert said(asking.repeat(27.0, waiting=False))[:2] == [("Pull", "s0"), ("Push", "s0")], "it begins anew"
