"""The definitions of the benchmarks' figures, by examples with results worked out by hand."""

from __future__ import annotations

import pytest
from tests.kit.bench_modules import load

figures = load("figures")


def test_a_step_begins_when_the_first_process_sees_it_and_warm_up_does_not_count() -> None:
    one = [(0, 0.0), (1, 5.0), (2, 6.0), (3, 7.5)]
    two = [(0, 0.1), (1, 5.2), (2, 5.9), (3, 8.0)]
    assert figures.step_times([one, two], 1) == pytest.approx([7.5 - 5.9])
    assert figures.step_times([one, two], 0) == pytest.approx([5.9 - 5.0, 7.5 - 5.9]), (
        "after the last process has warmed up"
    )


def test_a_missing_step_counts_as_half_of_the_time_between_its_neighbours() -> None:
    assert figures.step_times([[(0, 0.0), (2, 4.0), (3, 5.0)]], 0) == pytest.approx([2.0, 1.0])


def test_a_slot_computed_twice_counts_once() -> None:
    fast = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    again = [(0, 0.1), (0, 0.6), (1, 1.1), (1, 1.6), (2, 2.1), (2, 2.6), (3, 3.1)]
    assert figures.joint_rate([fast, fast], 0, 10) == figures.joint_rate([fast, again], 0, 10) == pytest.approx(10.0)


def test_the_rate_begins_when_the_slowest_is_warm() -> None:
    fast = [(step, step * 1.0) for step in range(11)]
    slow = [(0, 0.0), (5, 5.0), (10, 10.0)]
    assert figures.joint_rate([fast, slow], 1, 64) == pytest.approx(64.0)
    stalled = [(0, 0.0), *((step, step * 1.0 + 90) for step in range(1, 11))]
    assert figures.joint_rate([stalled], 1, 64) == pytest.approx(64.0), "the stall was during the warm-up"


def test_processes_that_run_alone_count_only_while_all_run() -> None:
    early = [(step, step * 0.5) for step in range(21)]  # this process ends at 10
    late = [(step, 5 + step * 1.0) for step in range(6)]  # from 5 to 10, then at twice the speed because it is alone
    late += [(step, 10 + (step - 5) * 0.5) for step in range(6, 21)]
    assert figures.separate_rates([early, late], 0, 64) == pytest.approx([128.0, 64.0])


@pytest.mark.parametrize("rate", [figures.joint_rate, figures.separate_rates])
def test_a_run_that_is_too_short_raises(rate: object) -> None:
    with pytest.raises(figures.TooShortError):
        rate([[(0, 0.0), (1, 1.0)]], 2, 64)  # type: ignore[operator]
    with pytest.raises(figures.TooShortError):
        rate([[(0, 0.0), (1, 1.0)], [(0, 7.0), (1, 8.0)]], 1, 64)  # type: ignore[operator]
    with pytest.raises(figures.TooShortError):
        figures.step_times([[(0, 0.0), (1, 1.0)]], 1)


def test_the_memory_limit_counts_copies_of_workers_and_the_pass_of_the_server() -> None:
    # 2 workers: 4 copies. The server reads 2 gradients, reads and writes weights and momentum: 6 accesses are 3 copies.
    assert figures.memory_limit_s(0.010, 2, 1) == pytest.approx(0.070)
    assert figures.memory_limit_s(0.010, 2, 2) == pytest.approx(0.035)
    assert figures.memory_limit_s(0.010, 4, 2) == pytest.approx(0.060)


def test_push_and_pull_count_bytes_both_ways() -> None:
    assert figures.push_pull_gb_per_s(100_000_000, 0.1) == pytest.approx(2.0)


def test_ratios_and_differences_are_computed_from_medians() -> None:
    assert figures.ratio([1.0, 2.0, 90.0], [4.0]) == pytest.approx(0.5)
    assert figures.ratio([], [4.0]) is None
    assert figures.ratio([4.0], []) is None
    assert figures.difference([5.0, 9.0, 70.0], [2.0]) == pytest.approx(7.0)
    assert figures.difference([5.0], []) is None


def test_growth_ignores_a_temporary_buffer() -> None:
    flat = [{"mb": 10.0 + (50 if n == 8 else 0)} for n in range(9)]
    assert figures.growth(flat, "mb") == 0
    assert figures.growth([{"mb": 10.0 + n} for n in range(9)], "mb") == pytest.approx(6.0)
    with pytest.raises(figures.TooShortError):
        figures.growth(flat[:2], "mb")
