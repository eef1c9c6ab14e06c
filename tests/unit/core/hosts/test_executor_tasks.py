"""Tasks that carry agents on Spark: as many as the run can use, ended one by one, and given up within a stated time."""

from __future__ import annotations

import pytest

from paceline.core.hosts.executor_tasks import (
    DUPLICATE,
    HOLD_S,
    JOIN_S,
    TRIES,
    Cancel,
    ExecutorTasks,
    GiveUp,
    KillStart,
    Offer,
    Output,
    Release,
    Submit,
    Tell,
    host_name,
)
from paceline.core.hosts.node_shares import Wanted

TWO = Offer(executors=2, cores=2)
FOUR_ROLES = Wanted(roles=4, hosts=2)


def tasks() -> ExecutorTasks:
    return ExecutorTasks("10.0.0.1:7411")


def running(wanted: Wanted = FOUR_ROLES, offer: Offer = TWO) -> tuple[ExecutorTasks, dict[str, int]]:
    """A run whose tasks 0 and 1 have brought a host each, with two roles each."""
    found = tasks()
    assert found.decide({}, wanted, offer, 0.0) == [Submit(0), Submit(1)]
    joined = {host_name(0, 10): 2, host_name(1, 11): 2}
    assert found.decide(joined, wanted, offer, 1.0) == []
    return found, joined


def given_up(outputs: list[Output]) -> str:
    (reason,) = [output.reason for output in outputs if isinstance(output, GiveUp)]
    return reason


@pytest.mark.parametrize(
    ("wanted", "offer", "number"),
    [
        (Wanted(4, 1), Offer(5, 2), 2),
        (Wanted(5, 1), Offer(5, 2), 3),
        (Wanted(2, 3), Offer(5, 4), 3),
        (Wanted(8, 1), Offer(2, 2), 2),
        (Wanted(8, 1), Offer(0, 2, elastic=True), 4),
        (Wanted(8, 1), Offer(0, 2, elastic=True, most=3), 3),
        (Wanted(1, 1, unlimited=True), Offer(3, 2), 3),
        (Wanted(1, 1, unlimited=True), Offer(3, 2, elastic=True), 4),
        (Wanted(1, 1, unlimited=True), Offer(3, 2, elastic=True, most=3), 3),
    ],
)
def test_spark_is_asked_for_what_the_run_can_use(wanted: Wanted, offer: Offer, number: int) -> None:
    assert tasks().decide({}, wanted, offer, 0.0) == [Submit(task) for task in range(number)]


def test_an_executor_that_registers_later_gets_a_task() -> None:
    found = tasks()
    assert found.decide({}, FOUR_ROLES, Offer(0, 1), 0.0) == []
    assert found.decide({}, FOUR_ROLES, Offer(1, 2), 1.0) == [Submit(0)]
    assert found.decide({}, FOUR_ROLES, Offer(3, 2), 2.0) == [Submit(1)]


def test_the_roles_wait_for_hosts_on_their_way_and_not_for_ever() -> None:
    found = tasks()
    assert found.coming(0, 0.0) == 1
    found.decide({}, Wanted(4, 1), TWO, 0.0)
    joined = {host_name(0, 0): 0}
    found.decide(joined, Wanted(4, 1), TWO, 2.0)
    assert found.coming(1, 3.0) == 1
    (crowded,) = found.decide(joined, Wanted(4, 1), TWO, 3.0 + HOLD_S)
    assert isinstance(crowded, Tell)
    assert "4 roles share 1 executors" in crowded.text
    assert found.coming(1, 4.0 + HOLD_S) == 0


def test_executors_that_register_one_after_the_other_are_awaited() -> None:
    found, wanted = tasks(), Wanted(4, 1)
    found.decide({}, wanted, Offer(1, 1), 0.0)
    joined = {host_name(0, 0): 0}
    found.decide(joined, wanted, Offer(1, 1), 1.0)
    assert found.coming(1, 1.0) > 0, "four cores are wanted, and further executors may register"
    found.decide(joined, wanted, Offer(2, 1), 5.5)
    found.decide(joined, wanted, Offer(2, 1), 11.0)
    assert found.coming(1, 11.0) > 0, "a second executor has registered, and its agent has not joined yet"
    joined[host_name(1, 1)] = 0
    found.decide(joined, wanted, Offer(2, 1), 12.0)
    found.decide(joined, wanted, Offer(2, 1), 17.0)
    assert found.coming(2, 17.0) == 0, "no further executor has come for a while"


def test_what_the_run_can_no_longer_use_is_given_back_one_by_one() -> None:
    found, joined = running()
    fewer = Wanted(roles=2, hosts=1)
    joined[host_name(1, 11)] = 0
    assert found.decide(joined, fewer, TWO, 10.0) == []
    assert found.decide(joined, fewer, TWO, 20.0) == [Release(host_name(1, 11))]
    assert found.decide(joined, fewer, TWO, 29.0) == []
    del joined[host_name(1, 11)]
    assert found.decide(joined, fewer, TWO, 31.0) == [Cancel(1)]
    assert found.decide(joined, fewer, TWO, 60.0) == []
    assert found.decide(joined, FOUR_ROLES, TWO, 61.0) == [Submit(2)]


def test_a_short_change_gives_nothing_back() -> None:
    found, joined = running()
    assert found.decide(joined, Wanted(2, 1), TWO, 10.0) == []
    assert found.decide(joined, FOUR_ROLES, TWO, 11.0) == []
    assert found.decide(joined, Wanted(2, 1), TWO, 20.0) == []


def test_a_task_that_still_waits_is_given_back_first() -> None:
    elastic = Offer(1, 2, elastic=True)
    found = tasks()
    found.decide({}, Wanted(4, 1), elastic, 0.0)
    joined = {host_name(0, 0): 2}
    found.decide(joined, Wanted(2, 1), elastic, 1.0)
    assert found.decide(joined, Wanted(2, 1), elastic, 10.0) == [Cancel(1)]


def test_a_later_start_is_a_new_host_and_the_earlier_one_of_its_task_is_ended() -> None:
    found, joined = running()
    joined[host_name(0, 12)] = 0
    assert found.decide(joined, FOUR_ROLES, TWO, 2.0) == [], "if its executor is lost, so will be the host"
    assert found.decide(joined, FOUR_ROLES, TWO, 47.0) == [Release(host_name(0, 10))]
    assert found.decide(joined, FOUR_ROLES, TWO, 48.0) == []
    del joined[host_name(0, 10)]
    assert found.decide(joined, FOUR_ROLES, TWO, 49.0) == [KillStart(10)]
    assert found.decide(joined, FOUR_ROLES, TWO, 50.0) == []


def test_an_start_after_a_lost_executor_costs_nothing_more() -> None:
    found, joined = running()
    del joined[host_name(0, 10)]
    assert found.decide(joined, FOUR_ROLES, TWO, 2.0) == []
    joined[host_name(0, 12)] = 0
    assert found.decide(joined, FOUR_ROLES, TWO, 3.0) == []


def test_a_task_that_fails_is_submitted_again_after_longer_and_longer_pauses() -> None:
    found, joined = running()
    (told,) = found.ended(1, None, "Job aborted", 10.0)
    assert isinstance(told, Tell)
    assert told.warning
    assert found.decide(joined, FOUR_ROLES, TWO, 10.5) == []
    assert found.decide(joined, FOUR_ROLES, TWO, 11.0) == [Submit(2)]


def test_a_second_task_on_one_executor_counts_as_no_failure() -> None:
    found, joined = running()
    assert found.ended(1, DUPLICATE, "", 10.0) == []
    assert found.decide(joined, FOUR_ROLES, TWO, 11.0) == []
    assert found.decide(joined, FOUR_ROLES, TWO, 15.0) == [Submit(2)]


def test_a_run_without_a_host_is_given_up_with_the_reason_of_the_last_failure() -> None:
    found, now = tasks(), 0.0
    for number in range(TRIES):
        assert found.decide({}, FOUR_ROLES, Offer(1, 2), now) == [Submit(number)]
        found.ended(number, 2, "executor-0-0 has torch none, the supervisor has 2.13.0", now)
        now += 40.0
    assert "has torch none" in given_up(found.decide({}, FOUR_ROLES, Offer(1, 2), now))


@pytest.mark.parametrize(
    ("offer", "joined", "text"),
    [
        (Offer(0, 1), 0, "no executor of the Spark application has registered within 120 s"),
        (
            Offer(1, 2),
            1,
            "needs 2 hosts (--min-hosts, --replicas), and the Spark application has after 120 s 1 executor:",
        ),
        (Offer(2, 2), 0, "no room for an agent for 120 s"),
        (Offer(2, 2, active=2), 0, "0 of 2 agents have reached 10.0.0.1:7411 within 120 s: give --listen"),
    ],
)
def test_a_run_that_cannot_begin_ends_within_a_stated_time_and_says_why(offer: Offer, joined: int, text: str) -> None:
    found = tasks()
    hosts = {host_name(number, number): 0 for number in range(joined)}
    found.decide(hosts, FOUR_ROLES, offer, 0.0)
    assert not any(isinstance(out, GiveUp) for out in found.decide(hosts, FOUR_ROLES, offer, JOIN_S))
    assert text in given_up(found.decide(hosts, FOUR_ROLES, offer, JOIN_S + 1.0))


def test_a_cluster_that_can_never_have_enough_executors_is_refused_at_once() -> None:
    reason = given_up(tasks().decide({}, FOUR_ROLES, Offer(1, 2, most=1), 0.0))
    assert "can have 1 executor:" in reason


def test_a_run_that_has_begun_is_not_given_up() -> None:
    found, _ = running()
    for number in range(20):
        outputs = found.decide({}, FOUR_ROLES, TWO, 200.0 + 40.0 * number)
        assert not any(isinstance(out, GiveUp) for out in outputs)
        for output in outputs:
            if isinstance(output, Submit):
                found.ended(output.number, None, "no executor", 200.0 + 40.0 * number)


def test_failures_count_until_another_host_joins_also_beside_a_host_that_is_there() -> None:
    found = tasks()
    found.decide({}, FOUR_ROLES, TWO, 0.0)
    joined, now = {host_name(0, 10): 0}, 1.0
    for number, pause_s in ((1, 1), (2, 2), (3, 4)):
        found.decide(joined, FOUR_ROLES, TWO, now)
        (told,) = found.ended(number, 2, "no torch", now)
        assert isinstance(told, Tell)
        assert told.text.endswith(f"in {pause_s} s")
        now += pause_s
    found.decide(joined, FOUR_ROLES, TWO, now)
    assert "no torch" in given_up(found.decide(joined, FOUR_ROLES, TWO, JOIN_S + 1.0))


def test_an_executor_that_the_user_emptied_gets_no_other_agent_until_the_executors_change() -> None:
    found, joined = running()
    del joined[host_name(1, 11)]
    assert found.ended(1, 0, "", 2.0) == []
    assert found.decide(joined, FOUR_ROLES, TWO, 3.0) == []
    assert found.decide(joined, FOUR_ROLES, Offer(executors=3, cores=2), 4.0) == [Submit(2)]


def test_a_host_that_is_given_back_and_stays_is_asked_again() -> None:
    found, joined = running()
    fewer = Wanted(2, 1)
    found.decide(joined, fewer, TWO, 10.0)
    (release,) = found.decide(joined, fewer, TWO, 16.0)
    assert isinstance(release, Release)
    assert found.decide(joined, fewer, TWO, 20.0) == []
    assert found.decide(joined, fewer, TWO, 27.0) == [release]


def test_a_run_that_has_begun_on_its_own_machine_is_not_given_up() -> None:
    found = tasks()
    begun = Wanted(4, 2, has_begun=True)
    assert found.decide({}, begun, TWO, 0.0) == [Submit(0), Submit(1)]
    assert found.decide({}, begun, TWO, JOIN_S + 1.0) == []
