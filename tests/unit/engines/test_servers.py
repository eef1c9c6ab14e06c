"""Which servers a run has."""

from __future__ import annotations

import pytest

from paceline.engines.servers import Servers


def servers_of(size: int) -> Servers:
    servers = Servers(size)
    for _ in range(size):
        servers.add()
    return servers


def test_more_servers_get_new_names() -> None:
    servers = servers_of(2)
    assert servers.adjust(3, [], []) == (1, [])
    assert servers.add() == "server-2"
    assert servers.adjust(3, [], []) == (0, [])


def test_a_server_ends_only_when_it_holds_nothing() -> None:
    servers = servers_of(3)
    assert servers.adjust(2, ["server-2"], []) == (0, []), "the server still holds blocks"
    assert servers.active == ["server-0", "server-1", "server-2"]
    assert servers.adjust(2, ["server-2"], ["server-2"]) == (0, ["server-2"])
    assert servers.adjust(2, ["server-2"], ["server-2"]) == (0, []), "an emptied server is named once"
    assert servers.active == ["server-0", "server-1"]
    assert servers.ended("server-2") == "holds no blocks any more, and has ended"
    assert servers.adjust(3, [], []) == (1, [])
    assert servers.add() == "server-3", "the name of a removed server is not used again"


def test_a_draining_server_stays_if_the_number_grows_again() -> None:
    servers = servers_of(3)
    servers.adjust(2, ["server-2"], [])
    assert servers.adjust(3, [], []) == (0, [])


def test_a_server_that_dies_is_started_again_unless_it_had_to_leave() -> None:
    servers = servers_of(3)
    assert not servers.ended("server-1")
    assert servers.active == ["server-0", "server-1", "server-2"]
    servers.adjust(2, ["server-2"], [])
    assert servers.ended("server-2") == "ended while it was being emptied", "the run does not wait for it"
    assert servers.adjust(2, [], []) == (0, [])
    assert servers.active == ["server-0", "server-1"]


def test_a_new_server_may_start_once_a_draining_one_is_empty() -> None:
    servers = servers_of(3)
    assert servers.adjust(3, ["server-0"], ["server-0"]) == (1, ["server-0"])


def test_a_server_that_is_given_up_is_not_wanted_any_more() -> None:
    servers = servers_of(3)
    servers.give_up("server-1")
    assert (servers.target, servers.active) == (2, ["server-0", "server-2"])
    assert servers.adjust(2, [], []) == (0, [])


@pytest.mark.parametrize(
    ("size", "replicas", "can"),
    [
        (3, 1, True),
        (2, 1, False),  # the remaining server has no other to keep its copies
        (4, 2, True),
        (3, 2, False),
        (3, 0, False),  # no other server has its blocks
        (1, 0, False),
    ],
)
def test_a_run_can_do_without_a_server_only_if_enough_others_hold_copies(size: int, replicas: int, can: bool) -> None:
    assert servers_of(size).can_do_without(replicas) is can


def test_servers_are_given_up_while_enough_remain() -> None:
    servers = servers_of(4)
    servers.give_up("server-3")
    assert servers.can_do_without(1)
    servers.give_up("server-0")
    assert not servers.can_do_without(1)
