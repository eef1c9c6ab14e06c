"""Which servers are in the in-sync set of each block: promotion, copies that leave, copies that are complete."""

from __future__ import annotations

from paceline.core.coordinator.in_sync_sets import enter, only_whole, promote, shrink
from paceline.core.coordinator.placement_plan import Servers, balance, spread
from paceline.core.layout import cut
from paceline.types import Kind, Placement, TensorSpec

NAMES = ("s0", "s1", "s2")
BLOCKS = cut([TensorSpec(f"t{i}", (numel,), "float32", Kind.PARAMETER, 0) for i, numel in enumerate((1_000_000, 5000))])


def place(
    owners: tuple[str, ...],
    backups: tuple[tuple[str, ...], ...] = (),
    joining: tuple[tuple[str, tuple[int, ...]], ...] = (),
) -> Placement:
    return Placement(1, owners, dict.fromkeys(NAMES, ""), backups, joining)


def test_only_a_living_member_of_the_in_sync_set_is_promoted() -> None:
    owners = balance(BLOCKS, NAMES)
    backups = spread(BLOCKS, owners, Servers(staying=NAMES, replicas=1))
    promoted = promote(BLOCKS, place(owners, backups), frozenset({"s0"}), frozenset({"s1", "s2"}))
    assert promoted is not None
    for block, owner in enumerate(promoted[0]):
        assert owner in (owners[block], *backups[block])
        assert owner != "s0"
    assert promote(BLOCKS, place(owners, backups), frozenset({"s0"}), frozenset({"s1"})) is None


def test_a_server_leaves_the_sets_of_the_named_blocks_only() -> None:
    placement = place(("s0", "s0"), (("s1", "s2"), ("s1",)))
    assert shrink(placement, {"s1": frozenset({0})}) == (("s2",), ("s1",))
    assert shrink(placement, {"s1": frozenset({0, 1}), "s2": frozenset({0})}) == ()


def test_nothing_shrinks_for_a_server_that_is_in_no_set_and_makes_no_copy() -> None:
    assert shrink(place(("s0",), (("s1",),)), {"s2": frozenset({0})}) is None
    assert shrink(place(("s0",), (("s1",),), (("s2", (0,)),)), {"s2": frozenset({0})}) == (("s1",),)


def test_a_server_enters_the_sets_of_the_blocks_that_it_copied_from_their_owner() -> None:
    placement = place(("s0", "s1"), (), (("s2", (0, 1)),))
    assert enter(placement, "s2", "s0") == ((("s2",), ()), (("s2", (1,)),))
    assert enter(placement, "s1", "s0") == ((), placement.joining), "s1 makes no copy"


def test_a_group_has_only_members_with_every_block() -> None:
    a, b, c = "member-0", "member-1", "member-2"
    assert only_whole((a, b), ((), (a,))) == ((a, a), ()), "b owns a block, but lacks the other"
    owners, backups = only_whole((a, c), ((b, c), (b,)))
    assert set(owners) == {b, c}, "a lacks a block"
    assert all({owner, *copies} == {b, c} for owner, copies in zip(owners, backups, strict=True))


def test_servers_keep_their_copies_beside_a_group_and_own_nothing() -> None:
    assert only_whole(("s0", "member-0"), (("member-0",), ("s1",))) == (("member-0", "member-0"), (("s0",), ("s1",)))


def test_in_sync_sets_stay_if_every_member_lacks_a_block() -> None:
    assert only_whole(("member-0", "member-1"), ()) == (("member-0", "member-1"), ())
    assert only_whole(("s0", "s0"), ()) == (("s0", "s0"), ())


def test_an_heir_is_of_the_kind_of_the_owner_if_one_is() -> None:
    sets = place(("s0", "s0"), (("member-0", "s1"), ("member-0",)))
    promoted = promote(BLOCKS[:2], sets, frozenset({"s0"}), frozenset({"s1", "member-0"}))
    assert promoted == (("s1", "member-0"), (("member-0",), ()))
