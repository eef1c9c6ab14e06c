"""The host of a role: servers are spread, workers go where cores are free, and a role may wait for a host."""

from __future__ import annotations

import pytest

from paceline.core.hosts.choice import (
    WAITS_S,
    HostLoad,
    choose_host,
    crowded_host,
    host_of_spare_server,
    worker_count,
)


def placed(names: list[str], hosts: dict[str, int]) -> dict[str, list[str]]:
    """Place roles one after the other on hosts with so many cores."""
    found: dict[str, list[str]] = {host: [] for host in hosts}
    for name in names:
        loads = [
            HostLoad(h, cores, sum(r[0] == "w" for r in found[h]), sum(r[0] == "s" for r in found[h]))
            for h, cores in hosts.items()
        ]
        host = choose_host("server" if name[0] == "s" else "worker", loads, 0.0, may_wait=False)
        assert host is not None
        found[host].append(name)
    return found


def test_servers_go_to_different_hosts_first() -> None:
    found = placed(["s0", "s1", "s2", "s3"], {"a": 8, "b": 2, "c": 2})
    assert sorted(len(roles) for roles in found.values()) == [1, 1, 2]
    assert len(found["a"]) == 2, "the second server of a host goes where most cores are free"


def test_a_server_goes_to_a_full_host_before_a_second_one_goes_to_any_host() -> None:
    loads = [HostLoad("a", 8, servers=1), HostLoad("b", 1, workers=1)]
    assert choose_host("server", loads, 0.0) == "b"


def test_workers_are_spread_by_cores() -> None:
    found = placed(["w0", "w1", "w2", "w3", "w4", "w5"], {"a": 4, "b": 2})
    assert {host: len(roles) for host, roles in found.items()} == {"a": 4, "b": 2}


def test_roles_are_placed_the_same_way_each_time() -> None:
    hosts = {"b": 2, "a": 2}
    assert placed(["s0", "w0", "w1"], hosts) == placed(["s0", "w0", "w1"], dict(reversed(hosts.items())))


@pytest.mark.parametrize(("role", "limit_s"), [("server", WAITS_S), ("worker", WAITS_S)])
def test_a_role_waits_for_a_host_with_a_free_core_and_then_shares_one(role: str, limit_s: float) -> None:
    full = [HostLoad("a", 2, workers=2), HostLoad("b", 2, workers=1, servers=2)]
    assert choose_host(role, full, WAITS_S - 0.1) is None
    assert choose_host(role, full, WAITS_S) == "a"
    assert choose_host(role, full, 0.0, may_wait=False) == "a", "at the start of a run no host may return"
    assert choose_host(role, [*full, HostLoad("c", 1)], 0.0) == "c"


def test_no_role_is_placed_without_a_host() -> None:
    assert choose_host("worker", [], 1e6, may_wait=False) is None


def test_auto_means_one_worker_for_each_core_without_a_server() -> None:
    hosts = [HostLoad("a", 4, workers=1, servers=1), HostLoad("b", 2)]
    assert worker_count(hosts, 2) == 4
    assert worker_count(hosts, 9) == 1


def test_a_worker_moves_only_from_too_few_cores_to_a_free_one() -> None:
    crowded, full, free = HostLoad("a", 2, workers=3), HostLoad("b", 2, workers=2), HostLoad("c", 2, workers=1)
    assert crowded_host([crowded, full, free]) == "a"
    assert crowded_host([crowded, full]) is None
    assert crowded_host([full, free]) is None
    assert crowded_host([HostLoad("a", 1, servers=2), free]) is None, "servers stay"
    assert crowded_host([crowded, HostLoad("d", 2, workers=5), free]) == "d"


def test_a_server_moves_only_if_its_copies_can_be_on_more_hosts() -> None:
    both, one, none = HostLoad("a", 2, servers=2), HostLoad("b", 2, servers=1), HostLoad("c", 2, workers=2)
    assert host_of_spare_server([both, none], 1) == "a"
    assert host_of_spare_server([both, none], 0) is None, "there are no copies"
    assert host_of_spare_server([both], 1) is None, "no host is without a server"
    assert host_of_spare_server([one, none], 1) is None, "it is the only server"
    assert host_of_spare_server([both, one, none], 1) is None, "the copies are on two hosts"
    assert host_of_spare_server([both, one, none], 2) == "a"
    assert host_of_spare_server([none], 1) is None


def test_samplers_go_to_hosts_without_one() -> None:
    loads = [HostLoad("a", 8, samplers=1), HostLoad("b", 2, workers=1), HostLoad("c", 4, workers=3)]
    assert choose_host("sampler", loads, 0.0) == "b"
    assert choose_host("sampler", [HostLoad("a", 2, samplers=1), HostLoad("b", 2, samplers=2)], 0.0) == "a"
