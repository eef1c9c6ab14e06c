from __future__ import annotations

from paceline.core.hosts.node_shares import Node, Share, Wanted, further_shares, surplus_host


def nodes(**free: int) -> list[Node]:
    return [Node(name, 4, cores) for name, cores in free.items()]


def test_the_fewest_nodes_with_enough_free_cores_carry_the_run_and_share_it_evenly() -> None:
    shares = further_shares(nodes(a=4, b=4, c=4), [], Wanted(6, 1))
    assert shares == [Share("a", 3, 3), Share("b", 3, 3)]


def test_nodes_with_the_most_free_cores_come_first_and_none_is_reserved_beyond_them() -> None:
    shares = further_shares(nodes(a=1, b=4), [], Wanted(5, 2))
    assert shares == [Share("b", 4, 4), Share("a", 1, 1)]


def test_a_run_with_copies_gets_as_many_nodes_as_it_asks_for() -> None:
    assert [share.node for share in further_shares(nodes(a=4, b=4, c=4), [], Wanted(2, 3))] == ["a", "b", "c"]


def test_cores_in_use_count() -> None:
    assert further_shares(nodes(a=4), [2, 2], Wanted(4, 2)) == []
    assert further_shares(nodes(a=4), [2], Wanted(4, 2)) == [Share("a", 2, 2)]


def test_an_unlimited_run_takes_every_free_core() -> None:
    wanted = Wanted(3, 1, unlimited=True)
    assert further_shares(nodes(a=4, b=2, c=0), [], wanted) == [Share("a", 4, 4), Share("b", 2, 2)]


def test_a_node_without_a_free_core_is_used_only_to_reach_the_number_of_hosts() -> None:
    assert further_shares(nodes(a=2, b=0), [], Wanted(4, 1)) == [Share("a", 2, 2)]
    assert further_shares(nodes(a=2, b=0), [], Wanted(4, 2)) == [Share("a", 2, 2), Share("b", 1, 0)]
    assert further_shares(nodes(b=0), [], Wanted(4, 1, unlimited=True)) == [Share("b", 1, 0)]


def test_a_node_that_has_no_cores_at_all_carries_nothing() -> None:
    assert further_shares([Node("head", 0, 0)], [], Wanted(2, 1)) == []


def test_the_host_with_the_fewest_roles_is_surplus_when_the_others_have_cores_for_all_roles() -> None:
    cores = {"a": 2, "b": 2, "c": 2}
    assert surplus_host(cores, {"a": 2, "b": 1, "c": 2}, Wanted(4, 1)) == "b"
    assert surplus_host(cores, {}, Wanted(5, 1)) is None
    assert surplus_host(cores, {}, Wanted(2, 3)) is None
    assert surplus_host(cores, {}, Wanted(2, 1, unlimited=True)) is None
