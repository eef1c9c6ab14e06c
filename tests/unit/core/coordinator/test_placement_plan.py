"""Which server should hold which block."""

from __future__ import annotations

import dataclasses
from collections import Counter
from random import Random

import pytest

from paceline.core.coordinator.placement_plan import Servers, balance, joins, settle, spread
from paceline.core.layout import cut
from paceline.types import BlockSpec, Kind, Placement, TensorSpec

NAMES = ("s0", "s1", "s2")


def blocks_of(*numels: int) -> tuple[BlockSpec, ...]:
    return cut([TensorSpec(f"t{i}", (numel,), "float32", Kind.PARAMETER, 0) for i, numel in enumerate(numels)])


BLOCKS = blocks_of(1_000_000, 5000)


def place(owners: tuple[str, ...], backups: tuple[tuple[str, ...], ...] = ()) -> Placement:
    return Placement(1, owners, dict.fromkeys(NAMES, ""), backups)


def test_owners_are_balanced_by_bytes_and_deterministic() -> None:
    owners = balance(BLOCKS, NAMES)
    assert owners == balance(BLOCKS, NAMES)
    load = {s: sum(b.nbytes for b in BLOCKS if owners[b.index] == s) for s in NAMES}
    assert max(load.values()) - min(load.values()) <= max(b.nbytes for b in BLOCKS)
    assert sorted(b for s in load for b in place(owners).owned(s)) == list(range(len(BLOCKS)))


def test_some_servers_own_nothing_when_there_are_fewer_blocks_than_servers() -> None:
    owners = balance(blocks_of(10), ["s0", "s1"])
    assert owners == ("s0",)
    assert place(owners).owned("s1") == ()


def test_a_backup_is_never_on_the_server_of_its_owner() -> None:
    owners = balance(BLOCKS, NAMES)
    assert spread(BLOCKS, owners, Servers(staying=NAMES)) == ()
    backups = spread(BLOCKS, owners, Servers(staying=NAMES, replicas=1))
    assert all(len(others) == 1 and owner not in others for owner, others in zip(owners, backups, strict=True))


def test_missing_copies_are_planned_and_a_complete_placement_does_not_change() -> None:
    placement = place(balance(BLOCKS, NAMES))
    servers = Servers(staying=NAMES, replicas=1)
    for _ in range(20):
        wanted = joins(BLOCKS, placement, servers)
        if not wanted:
            break
        backups = [set(others) for others in placement.backups or ((),) * len(BLOCKS)]
        for server, blocks in wanted:
            for block in blocks:
                assert server not in placement.copies(block)
                backups[block].add(server)
        owners, kept = settle(BLOCKS, place(placement.owners, tuple(tuple(sorted(b)) for b in backups)), servers)
        placement = place(owners, kept)
    assert all(len(placement.copies(block.index)) == 2 for block in BLOCKS)
    assert settle(BLOCKS, placement, servers) == (placement.owners, placement.backups)


def test_a_draining_server_loses_a_block_once_another_server_has_a_copy() -> None:
    placement = place(("s0",) * len(BLOCKS), (("s1",),) * len(BLOCKS))
    leaving = Servers(staying=("s1", "s2"), leaving=frozenset({"s0"}))
    owners, backups = settle(BLOCKS, placement, leaving)
    assert set(owners) == {"s1"}
    assert backups == ()


def test_no_copy_is_planned_between_servers_that_cannot_reach_each_other() -> None:
    placement = place(("s0",) * len(BLOCKS))
    servers = Servers(staying=NAMES, replicas=1, barred=frozenset({("s1", "s0")}))
    assert {server for server, _ in joins(BLOCKS, placement, servers)} == {"s2"}
    apart = dataclasses.replace(servers, barred=frozenset({("s1", "s0"), ("s0", "s2")}))
    assert joins(BLOCKS, placement, apart) == ()


# ---------------------------------------------------------------- hosts


def planned(blocks: tuple[BlockSpec, ...], placement: Placement, servers: Servers, rounds: int = 60) -> Placement:
    """Plan, and let every copy be made, until nothing changes."""
    for _ in range(rounds):
        owners, backups = settle(blocks, placement, servers)
        after = moved(placement, owners, backups)
        wanted = joins(blocks, after, servers)
        if not wanted and after == placement:
            return placement
        sets = [list(others) for others in after.backups or ((),) * len(blocks)]
        for server, mine in wanted:
            for block in mine:
                sets[block].append(server)
        placement = moved(after, after.owners, tuple(map(tuple, sets)) if any(sets) else ())
    raise AssertionError(f"the plan changes for ever: {placement}")


def moved(placement: Placement, owners: tuple[str, ...], backups: tuple[tuple[str, ...], ...]) -> Placement:
    return Placement(placement.epoch, owners, placement.addresses, backups)


@pytest.mark.parametrize("seed", range(60))
def test_plans_end_with_every_block_on_as_many_hosts_as_possible(seed: int) -> None:
    """Whatever the layout of the hosts, and wherever the copies are at first; servers leave on the way."""
    rng = Random(seed)
    names = tuple(f"s{i}" for i in range(rng.randint(2, 7)))
    hosts = {name: f"h{rng.randrange(rng.randint(1, 4))}" for name in names}
    blocks = blocks_of(*(rng.choice((5_000, 300_000, 600_000)) for _ in range(rng.randint(1, 9))))
    replicas = rng.randint(0, min(2, len(names) - 1))
    servers = Servers(staying=names, replicas=replicas, hosts=hosts)
    first = [rng.choice(names) for _ in blocks]
    placement = planned(blocks, place(tuple(first)), servers)
    check(blocks, placement, servers)
    gone = rng.choice(names)
    if len(names) - 1 > replicas:
        staying = tuple(n for n in names if n != gone)
        left = Servers(staying=staying, leaving=frozenset({gone}), replicas=replicas, hosts=hosts)
        check(blocks, planned(blocks, placement, left), left)


def check(blocks: tuple[BlockSpec, ...], placement: Placement, servers: Servers) -> None:
    for block in blocks:
        members = placement.copies(block.index)
        assert len(members) == servers.copies
        assert set(members) <= set(servers.staying)
        assert len({servers.host(m) for m in members}) == servers.span


def test_the_first_backups_are_on_other_hosts_even_if_their_servers_have_more_load() -> None:
    servers = Servers(staying=("a1", "a2", "a3", "b1"), replicas=1, hosts={"a1": "a", "a2": "a", "a3": "a", "b1": "b"})
    blocks = blocks_of(*(10_000,) * 8)
    owners = balance(blocks, servers.staying)
    for owner, others in zip(owners, spread(blocks, owners, servers), strict=True):
        assert {servers.host(owner), *map(servers.host, others)} == {"a", "b"}


def test_of_surplus_copies_one_on_a_doubled_host_goes_first_though_another_server_has_more_load() -> None:
    servers = Servers(staying=("a1", "a2", "b1"), replicas=1, hosts={"a1": "a", "a2": "a", "b1": "b"})
    blocks = blocks_of(10_000, 10_000)
    placement = Placement(1, ("a1", "b1"), {}, (("a2", "b1"), ("a1",)))
    owners, backups = settle(blocks, placement, servers)
    assert Counter(map(len, backups)) == {1: 2}
    assert "b1" in moved(placement, owners, backups).copies(0)


def test_a_block_on_too_few_hosts_gets_a_copy_only_where_it_has_none() -> None:
    servers = Servers(staying=("a1", "a2", "a3", "b1"), replicas=1, hosts={"a1": "a", "a2": "a", "a3": "a", "b1": "b"})
    blocks = blocks_of(10_000)
    assert joins(blocks, Placement(1, ("a1",), {}, (("a2",),)), servers) == (("b1", (0,)),)
    apart = dataclasses.replace(servers, barred=frozenset({("a1", "b1")}))
    assert joins(blocks, Placement(1, ("a1",), {}, (("a2",),)), apart) == (), "no copy on a host that has one"


def test_load_is_evened_out_between_the_servers_of_a_host_though_another_host_has_more() -> None:
    servers = Servers(staying=("a1", "a2", "b1"), replicas=1, hosts={"a1": "a", "a2": "a", "b1": "b"})
    blocks = blocks_of(*(10_000,) * 8)
    placement = planned(blocks, Placement(1, ("b1",) * len(blocks), {}, (("a1",),) * len(blocks)), servers)
    held = Counter(m for b in blocks for m in placement.copies(b.index))
    assert held["b1"] == len(blocks)
    assert abs(held["a1"] - held["a2"]) <= 1
