"""Which processes are started again, and how often."""

from __future__ import annotations

import pytest

from paceline.engines.restart_policy import QUICK_S, Again, Decision, ForkServerRestarts, GiveUp, RestartPolicy, Stay
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_COLLATERAL, EXIT_DONE, EXIT_LEFT, EXIT_LOST, EXIT_SCRIPT

KILLED = -9


class Clock:
    """Processes of one name, one after the other."""

    def __init__(self, limit: int = 5, name: str = "worker-0") -> None:
        self.policy = RestartPolicy(limit)
        self.name = name
        self.now = 100.0
        self.start = 0
        self.version = 0

    def life(self, code: int = KILLED, *, seconds: float = 1.0, useful: bool = False) -> Decision:
        self.start += 1
        self.policy.started(self.name, self.start, self.now)
        if useful:
            self.policy.saw({(self.name, self.start)}, 0, self.version)
            self.version += 1
            self.policy.saw({(self.name, self.start)}, 0, self.version)
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


def test_a_role_that_is_killed_after_a_commit_is_never_given_up() -> None:
    for name in ("worker-0", "server-0", "coordinator"):
        clock = Clock(limit=2, name=name)
        assert [clock.life(useful=True) for _ in range(9)] == [Again(0.0, n) for n in range(1, 10)]
        assert [clock.life() for _ in range(4)] == [Again(0.0, 10), Again(0.5, 11), Again(1.0, 12), Again(1.0, 13)]
        clock.now += 60.0
        assert clock.life() == GiveUp(5), "for a minute it was of no use"


def test_the_pause_of_a_role_that_has_been_useful_stays_short() -> None:
    clock = Clock(limit=100)
    clock.life(useful=True)
    pauses = [decision.after_s for _ in range(6) if isinstance(decision := clock.life(), Again)]
    assert pauses == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]


def test_a_useful_life_resets_the_pause() -> None:
    clock = Clock(limit=100)
    for _ in range(5):
        clock.life()
    assert clock.life(useful=True) == Again(0.0, 6)
    assert clock.life() == Again(0.0, 7)


@pytest.mark.parametrize(("name", "again"), [("worker-0", True), ("server-0", False), ("coordinator", False)])
def test_steps_computed_again_after_a_rewind_prove_the_use_of_a_worker_only(name: str, again: bool) -> None:
    policy = RestartPolicy(1)
    for incarnation in range(3):  # it dies at the same step in each incarnation
        now = 100.0 * incarnation
        policy.started(name, incarnation, now)
        policy.saw({(name, incarnation)}, incarnation, 3)
        policy.saw({(name, incarnation)}, incarnation, 4)
        decision = policy.ended(name, KILLED, now + 1.0)
    assert isinstance(decision, Again) is again


def test_a_limit_of_0_allows_no_death() -> None:
    assert Clock(limit=0).life() == GiveUp(1)
    assert Clock(limit=0).life(seconds=1000.0) == GiveUp(1)
    assert Clock(limit=0).life(EXIT_AGAIN) == Again(0.0, 0), "a restart that the process asks for is no death"


def test_a_restart_that_the_process_asks_for_is_not_counted() -> None:
    clock = Clock(limit=1)
    for _ in range(10):
        assert clock.life(EXIT_AGAIN) == Again(0.0, 0)
    assert clock.policy.restarts == {"sampler": 0, "worker": 0, "server": 0, "coordinator": 0}
    assert clock.life() == Again(0.0, 1)


def test_restarts_are_counted_by_name_and_summed_by_role() -> None:
    policy = RestartPolicy(1)
    for name in ("worker-0", "worker-1", "server-0", "coordinator"):
        policy.started(name, 1, 0.0)
        assert isinstance(policy.ended(name, KILLED, 1.0), Again)
    assert policy.restarts == {"sampler": 0, "worker": 2, "server": 1, "coordinator": 1}


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
    assert dies(({5}, 1, 3), ({5}, 1, 4)) == 2.0, "the step was committed before"
    assert dies(({5}, 1, 9), ({5}, 1, 10)) == 0.0


def test_a_fork_server_that_was_ready_is_started_again_at_once() -> None:
    restarts = ForkServerRestarts()
    assert not restarts.due(0.0)
    for now in range(9):
        assert restarts.ended(float(now), was_ready=True) == Again(0.0, 0)
        assert restarts.due(float(now))
        assert not restarts.due(float(now)), "it is started once"


def test_a_fork_server_that_its_spare_replaces_is_not_started_again() -> None:
    restarts = ForkServerRestarts()
    assert restarts.ended(1.0, was_ready=True, replaced=True) == Stay()
    assert not restarts.due(100.0)


def test_a_fork_server_that_cannot_load_torch_is_given_up() -> None:
    restarts = ForkServerRestarts()
    assert [restarts.ended(100.0, was_ready=False) for _ in range(2)] == [Again(0.0, 0), Again(0.5, 0)]
    assert not restarts.due(100.4)
    assert restarts.due(100.5)
    decisions = [restarts.ended(200.0, was_ready=False) for _ in range(3)]
    assert decisions[-1] == GiveUp(5)
