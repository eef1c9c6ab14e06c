"""Which processes are started again, and how often."""

from __future__ import annotations

import pytest

from paceline.engines.restart_policy import QUICK_S, Again, Decision, GiveUp, RestartPolicy, Stay
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_COLLATERAL, EXIT_DONE, EXIT_LEFT, EXIT_LOST, EXIT_SCRIPT

KILLED = -9


class Clock:
    """Processes of one name, one after the other."""

    def __init__(self, limit: int = 5, name: str = "worker-0") -> None:
        self.policy = RestartPolicy(limit)
        self.name = name
        self.now = 100.0
        self.start = 0

    def life(self, code: int = KILLED, *, seconds: float = 1.0, useful: bool = False) -> Decision:
        self.start += 1
        self.policy.started(self.name, self.start, self.now)
        if useful:
            self.policy.saw({(self.name, self.start)}, 0, 7)
            self.policy.saw({(self.name, self.start)}, 0, 8)
        self.now += seconds
        return self.policy.ended(self.name, code, self.now)


@pytest.mark.parametrize(
    ("name", "code", "again"),
    [
        ("worker-0", KILLED, True),
        ("worker-0", -11, True),
        ("worker-0", EXIT_LOST, True),
        ("worker-0", EXIT_AGAIN, True),
        ("worker-0", EXIT_DONE, False),
        ("worker-0", EXIT_SCRIPT, False),
        ("worker-0", EXIT_COLLATERAL, False),
        ("worker-0", EXIT_LEFT, False),
        ("server-1", KILLED, True),
        ("server-1", EXIT_DONE, True),
        ("server-1", EXIT_SCRIPT, False),
        ("coordinator", KILLED, True),
        ("coordinator", EXIT_DONE, True),
        ("coordinator", EXIT_SCRIPT, False),
    ],
)
def test_an_end_is_retried_or_not_by_its_role_and_exit_code(name: str, code: int, again: bool) -> None:
    decision = Clock(name=name).life(code)
    assert isinstance(decision, Again if again else Stay)


def test_the_pause_grows_with_quick_deaths_without_a_commit() -> None:
    clock = Clock(limit=100)
    pauses = []
    for _ in range(8):
        decision = clock.life()
        assert isinstance(decision, Again)
        pauses.append(decision.after_s)
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_long_life_resets_the_count_of_quick_deaths() -> None:
    clock = Clock(limit=3)
    for _ in range(3):
        clock.life()
    assert clock.life(seconds=QUICK_S) == Again(0.0, 4)
    assert clock.life() == Again(0.0, 5)
    assert clock.life() == Again(0.5, 6)


def test_a_role_that_is_killed_after_a_commit_is_restarted_at_once() -> None:
    clock = Clock(limit=100, name="coordinator")
    assert [clock.life(useful=True) for _ in range(5)] == [Again(0.0, n) for n in range(1, 6)]


def test_quick_deaths_are_limited_even_if_each_life_had_a_commit() -> None:
    clock = Clock(limit=2)
    assert isinstance(clock.life(useful=True), Again)
    assert isinstance(clock.life(useful=True), Again)
    assert clock.life(useful=True) == GiveUp(3)


def test_a_limit_of_0_allows_no_death() -> None:
    assert Clock(limit=0).life() == GiveUp(1)
    assert Clock(limit=0).life(seconds=1000.0) == GiveUp(1)
    assert Clock(limit=0).life(EXIT_AGAIN) == Again(0.0, 0), "a restart that the process asks for is no death"


def test_a_restart_that_the_process_asks_for_is_not_counted() -> None:
    clock = Clock(limit=1)
    for _ in range(10):
        assert clock.life(EXIT_AGAIN) == Again(0.0, 0)
    assert clock.policy.restarts == {"worker": 0, "server": 0, "coordinator": 0}
    assert clock.life() == Again(0.0, 1)


def test_restarts_are_counted_by_name_and_summed_by_role() -> None:
    policy = RestartPolicy(1)
    for name in ("worker-0", "worker-1", "server-0", "coordinator"):
        policy.started(name, 1, 0.0)
        assert isinstance(policy.ended(name, KILLED, 1.0), Again)
    assert policy.restarts == {"worker": 2, "server": 1, "coordinator": 1}


def test_taking_part_needs_a_commit_in_the_same_incarnation() -> None:
    policy = RestartPolicy(100)

    def dies(*seen: tuple[set[int], int, int]) -> float:
        policy.started("server-0", 5, 0.0)
        for starts, incarnation, version in seen:
            policy.saw({("server-0", start) for start in starts} | {("server-1", 5)}, incarnation, version)
        decision = policy.ended("server-0", KILLED, 1.0)
        assert isinstance(decision, Again)
        return decision.after_s

    assert dies() == 0.0
    assert dies(({4}, 0, 1), ({4}, 0, 2)) == 0.5, "commits of others do not count"
    assert dies(({5}, 0, 9), ({5}, 1, 3)) == 1.0, "a rewind is no commit"
    assert dies(({5}, 1, 3), ({5}, 1, 4)) == 0.0
