from __future__ import annotations

from paceline.core.predict.balance import Balance


def balance(*names: str) -> Balance:
    made = Balance()
    for name in names:
        made.add(name)
    return made


def test_a_request_goes_to_the_predictor_with_the_fewest_and_in_turns_among_equals() -> None:
    load = balance("a", "b")
    assert [load.give(n) for n in range(4)] == ["a", "b", "a", "b"]
    load.done(1)
    load.done(3)
    assert [load.give(n) for n in (4, 5)] == ["b", "b"]
    load = balance("a", "b", "c")
    given = []
    for number in range(6):
        given.append(load.give(number))
        load.done(number)
    assert given == ["a", "b", "c"] * 2


def test_the_requests_of_a_dead_predictor_go_elsewhere_once() -> None:
    load = balance("a", "b")
    assert [load.give(n) for n in range(3)] == ["a", "b", "a"]
    assert load.lost("a") == ((0, 2), ())
    assert [load.give(n) for n in (0, 2)] == ["b", "b"]
    assert load.lost("b") == ((1,), (0, 2))
    assert load.give(1) is None
    load.done(1)
    assert (load.under_way, load.ready) == (0, ())
