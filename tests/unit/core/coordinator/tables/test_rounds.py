"""The table of validation rounds: slots, reports and results."""

from __future__ import annotations

import math

from tests.kit.core import fence

from paceline.core.coordinator.tables.rounds import Rounds
from paceline.messages import Evaluated, ValidatorSpec
from paceline.types import Measured, Sums

SPEC = ValidatorSpec(0, "accuracy", 5, 10, 4)


def report(slot: int, counter: int, total: float, count: float, number: int = 1) -> Evaluated:
    return Evaluated(number, slot, fence(counter), {"acc": Sums(total, count)})


def test_a_round_is_every_slot_once_and_its_mean_is_over_samples() -> None:
    book = Rounds()
    book.add(SPEC)
    round_ = book.open(SPEC, 5, 5)
    assert round_ is not None
    assert [book.grant("w", fence(i), 1) for i in range(4)] == [(round_, 0), (round_, 1), (round_, 2), None]
    assert book.report(report(2, 2, 2.0, 2.0)) is None
    assert book.report(report(0, 0, 1.0, 4.0)) is None
    assert book.report(report(0, 0, 9.0, 4.0)) is None, "the first report of a slot counts"
    assert book.report(report(7, 1, 9.0, 4.0)) is None, "there is no such slot"
    assert book.report(report(1, 1, 3.0, 4.0)) is round_
    assert book.latest[0] == (5, {"acc": 0.6})
    assert book.metrics() == {"acc": Measured(0.6, 5)}
    assert book.report(report(1, 1, 3.0, 4.0)) is None
    assert book.open(SPEC, 5, 5) is None, "the result is known"


def test_slots_of_a_lost_worker_are_free_again() -> None:
    book = Rounds()
    book.open(SPEC, 5, 5)
    book.grant("a", fence(1), 1)
    book.grant("b", fence(2), 1)
    book.grant("b", fence(3), 1)
    assert not book.waiting(1)
    assert book.revoke("b")
    assert not book.revoke("b")
    assert book.waiting(1)
    assert fence(1) in book
    assert fence(2) not in book
    again = [book.grant("c", fence(4), 1), book.grant("c", fence(5), 1)]
    assert sorted(g[1] for g in again if g is not None) == [1, 2]


def test_a_late_report_of_a_reassigned_slot_counts_and_a_second_report_does_not() -> None:
    book = Rounds()
    book.open(ValidatorSpec(0, "v", 1, 4, 4), 5, 5)
    book.grant("a", fence(1), 1)
    book.revoke("a")
    book.grant("b", fence(2), 1)
    assert book.report(report(0, 1, 1.0, 4.0)) is not None
    assert book.report(report(0, 2, 3.0, 4.0)) is None
    assert book.latest[0] == (5, {"acc": 0.25})


def test_a_slot_that_is_handed_back_is_free_again() -> None:
    book = Rounds()
    round_ = book.open(SPEC, 5, 5)
    book.grant("a", fence(1), 1)
    assert book.abandon(fence(1)) is round_
    assert book.abandon(fence(1)) is None
    assert book.grant("b", fence(2), 1) == (round_, 0)


def test_a_worker_gets_only_slots_of_validators_that_it_has_declared() -> None:
    book = Rounds()
    book.open(ValidatorSpec(1, "second", 0, 4, 4), 5, 5)
    assert not book.waiting(1)
    assert book.grant("a", fence(1), 1) is None
    assert book.waiting(2)
    assert book.grant("a", fence(1), 2) is not None


def test_a_round_is_due_at_every_interval_and_at_the_last_version() -> None:
    book = Rounds()
    by_hand, empty = ValidatorSpec(1, "by hand", 0, 10, 4), ValidatorSpec(2, "empty", 5, 0, 4)
    book.validators += [SPEC, by_hand, empty]
    assert book.due(0, last=True) == []
    assert book.due(4, last=False) == []
    assert book.due(5, last=False) == [SPEC]
    assert book.due(7, last=True) == [SPEC]


def test_rounds_may_end_in_another_order_than_they_began() -> None:
    book = Rounds()
    spec = ValidatorSpec(0, "v", 1, 4, 4)
    book.open(spec, 5, 5)
    book.open(spec, 6, 6)
    assert book.open(spec, 6, 6) is book.running[2], "a round that is requested twice runs once"
    assert book.concerns(6)
    assert book.report(report(0, 1, 2.0, 4.0, number=2)) is not None
    assert not book.concerns(6)
    assert book.report(report(0, 2, 1.0, 4.0, number=1)) is not None
    assert book.latest[0] == (6, {"acc": 0.5}), "the newest version's result stays"


def test_a_round_without_data_ends_at_once_without_metrics() -> None:
    book = Rounds()
    assert book.open(ValidatorSpec(0, "v", 0, 0, 4), 3, 3) is None
    assert book.latest[0] == (3, {})


def test_a_metric_without_samples_is_nan() -> None:
    book = Rounds()
    book.open(ValidatorSpec(0, "v", 0, 4, 4), 3, 3)
    ended = book.report(report(0, 1, 0.0, 0.0))
    assert ended is not None
    assert math.isnan(ended.metrics()["acc"])


def test_the_metrics_of_a_phase_are_the_results_known_at_its_end() -> None:
    book = Rounds()
    book.validators += [SPEC, ValidatorSpec(1, "top1", 0, 10, 4)]
    results = [
        (0, 5, {"acc": 0.5}),
        (1, 5, {"top": 0.1}),
        (0, 9, {"acc": 0.9}),
        (0, 7, {"acc": 0.7}),
        (1, 9, {"top": 0.2}),
    ]
    found = book.metrics_at(9, results)
    assert found == {"acc": Measured(0.9, 9), "top": Measured(0.1, 5)}, "a later result for version 9 does not count"
    assert book.metrics_at(8, results) == {"acc": Measured(0.7, 7), "top": Measured(0.1, 5)}
    assert book.metrics_at(5, results) == {"acc": Measured(0.5, 5)}
    assert book.metrics_at(4, results) == {}


def test_an_older_result_is_kept_as_long_as_a_turn_may_see_it() -> None:
    book = Rounds()
    book.add(ValidatorSpec(0, "v", 10, 4, 4, 0))
    for version in (10, 20, 30):
        book.recall(0, version, {"acc": float(version)})
    assert [version for _, version, _ in book.results()] == [20, 30], "turns of step 30 and later see version 20"
    assert book.seen_at(30, 0) == {"acc": Measured(20.0, 20)}
    assert book.seen_at(39, 0) == {"acc": Measured(20.0, 20)}
    assert book.seen_at(40, 0) == {"acc": Measured(30.0, 30)}
    book.recall(0, 40, {"acc": 40.0})
    assert book.seen_at(49, 0) == {"acc": Measured(30.0, 30)}
    assert book.metrics() == {"acc": Measured(40.0, 40)}


def test_results_of_many_evaluations_take_no_time_in_a_turn() -> None:
    book = Rounds()
    for number in range(1000):
        book.add(ValidatorSpec(number, "v", 0, 4, 4, 0))
        book.recall(number, number, {"acc": float(number)})
    first = book.seen_at(2000, 2000)
    assert first == {"acc": Measured(999.0, 999)}
    assert book.seen_at(2001, 2000) is first, "it is computed again only when it changes"


def test_a_rewind_keeps_the_results_on_versions_that_stay() -> None:
    book = Rounds()
    book.add(ValidatorSpec(0, "v", 10, 4, 4, 0))
    for version in (10, 20, 30):
        book.recall(0, version, {"acc": float(version)})
    book.reset([(0, 10, {"acc": 10.0})], 25)
    assert [version for _, version, _ in book.results()] == [10, 20]
    book.reset((), -1)
    assert book.results() == []


def test_the_barrier_is_the_first_step_that_sees_an_open_round() -> None:
    book = Rounds()
    periodic, by_hand = ValidatorSpec(0, "v", 10, 4, 4, 0), ValidatorSpec(1, "h", 0, 4, 4, 1)
    book.open(by_hand, 5, 5)
    assert book.barrier() is None
    book.open(periodic, 20, 20)
    book.open(periodic, 10, 10)
    assert book.barrier() == 20
