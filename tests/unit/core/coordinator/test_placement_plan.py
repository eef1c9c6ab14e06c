"""Which server should hold which block."""

from __future__ import annotations

import dataclasses

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
