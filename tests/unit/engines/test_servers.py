"""Who serves."""

from __future__ import annotations

import pytest

from paceline.engines.servers import Fleet


def fleet_of(size: int) -> Fleet:
    fleet = Fleet(size)
    for _ in range(size):
        fleet.hire()
    return fleet


def test_more_servers_get_new_names() -> None:
    fleet = fleet_of(2)
    assert fleet.adjust(3, [], []) == (1, [])
    assert fleet.hire() == "server-2"
    assert fleet.adjust(3, [], []) == (0, [])


def test_a_server_ends_only_when_it_holds_nothing() -> None:
    fleet = fleet_of(3)
    assert fleet.adjust(2, ["server-2"], []) == (0, []), "its blocks are still moving"
    assert fleet.active == ["server-0", "server-1", "server-2"]
    assert fleet.adjust(2, ["server-2"], ["server-2"]) == (0, ["server-2"])
    assert fleet.adjust(2, ["server-2"], ["server-2"]) == (0, []), "it is told once"
    assert fleet.active == ["server-0", "server-1"]
    assert fleet.ended("server-2") == "holds no blocks any more, and has ended"
    assert fleet.adjust(3, [], []) == (1, [])
    assert fleet.hire() == "server-3", "a name is not used again"


def test_one_that_drains_may_be_called_back() -> None:
    fleet = fleet_of(3)
    fleet.adjust(2, ["server-2"], [])
    assert fleet.adjust(3, [], []) == (0, [])


def test_who_dies_is_started_again_unless_it_was_to_leave() -> None:
    fleet = fleet_of(3)
    assert not fleet.ended("server-1")
    assert fleet.active == ["server-0", "server-1", "server-2"]
    fleet.adjust(2, ["server-2"], [])
    assert fleet.ended("server-2") == "ended while it was being emptied", "nobody waits for it"
    assert fleet.adjust(2, [], []) == (0, [])
    assert fleet.active == ["server-0", "server-1"]


def test_an_emptied_server_makes_room_for_another() -> None:
    fleet = fleet_of(3)
    assert fleet.adjust(3, ["server-0"], ["server-0"]) == (1, ["server-0"])


def test_one_that_is_given_up_is_not_wanted_any_more() -> None:
    fleet = fleet_of(3)
    fleet.give_up("server-1")
    assert (fleet.target, fleet.active) == (2, ["server-0", "server-2"])
    assert fleet.adjust(2, [], []) == (0, [])


@pytest.mark.parametrize(
    ("servers", "replicas", "can"),
    [
        (3, 1, True),
        (2, 1, False),  # the last one has nowhere to keep copies
        (4, 2, True),
        (3, 2, False),
        (3, 0, False),  # nobody has its blocks
        (1, 0, False),
    ],
)
def test_who_can_be_done_without(servers: int, replicas: int, can: bool) -> None:
    assert fleet_of(servers).can_do_without(replicas) is can


def test_one_after_the_other_is_given_up_as_long_as_the_others_are_enough() -> None:
    fleet = fleet_of(4)
    fleet.give_up("server-3")
    assert fleet.can_do_without(1)
    fleet.give_up("server-0")
    assert not fleet.can_do_without(1)
