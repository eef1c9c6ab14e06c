"""The number of slots ahead follows what workers need."""

from __future__ import annotations

from paceline.core.sampler.demand import LEAST, MOST, Demand


def test_a_wait_doubles_the_slots_ahead_up_to_a_limit() -> None:
    demand = Demand()
    seen = []
    for _ in range(8):
        demand.asked(ready=False, ahead_is_full=False)
        seen.append(demand.ahead)
    assert seen[:3] == [2 * LEAST, 4 * LEAST, 8 * LEAST]
    assert seen[-1] == MOST


def test_the_slots_ahead_fall_slowly_while_all_of_them_are_ready() -> None:
    demand = Demand()
    demand.asked(ready=False, ahead_is_full=False)
    for _ in range(31):
        demand.asked(ready=True, ahead_is_full=True)
    assert demand.ahead == 2 * LEAST
    demand.asked(ready=True, ahead_is_full=True)
    assert demand.ahead == 2 * LEAST - 1
    for _ in range(1000):
        demand.asked(ready=True, ahead_is_full=False)
    assert demand.ahead == 2 * LEAST - 1, "slots ahead that are not ready yet are needed"
    for _ in range(1000):
        demand.asked(ready=True, ahead_is_full=True)
    assert demand.ahead == LEAST
