"""The placement in the status, as users and engines see it."""

from __future__ import annotations

from paceline.coordinator.placement_report import drained, placed
from paceline.messages.status import PlacementStatus
from paceline.types import Placement

A, B, C = "server-0/aa", "server-1/bb", "server-2/cc"
ADDRESSES = {A: "tcp://a", B: "tcp://b", C: "tcp://c"}
PLACED = Placement(4, (A, B, A), ADDRESSES, ((B,), (C,), (B,)))


def test_the_report_counts_the_blocks_of_each_server() -> None:
    assert placed(PLACED, 1) == PlacementStatus(
        epoch=4,
        blocks=3,
        servers={"server-0": (2, 0), "server-1": (1, 2), "server-2": (0, 1)},
        short=0,
        building=0,
    )
    assert placed(None, 1).blocks == 0


def test_the_report_counts_missing_copies_and_copies_being_made() -> None:
    short = Placement(5, (A, A, A), ADDRESSES, ((), (C,), ()), ((B, (0, 2)),))
    figures = placed(short, 1)
    assert (figures.short, figures.building) == (2, 2)
    assert placed(Placement(1, (A, B, A), ADDRESSES), 0).short == 0
    assert placed(Placement(1, (A, B, A), ADDRESSES), 1).short == 3


def test_a_server_is_drained_once_it_holds_nothing() -> None:
    assert drained(PLACED, [C]) == (), "the server still holds a backup"
    moved = Placement(5, (A, B, A), ADDRESSES, ((B,), (A,), (B,)))
    assert drained(moved, [C]) == ("server-2",)
    coming = Placement(5, (A, B, A), ADDRESSES, ((B,), (A,), (B,)), ((C, (0,)),))
    assert drained(coming, [C]) == (), "the server still receives a copy"


def test_a_block_on_fewer_hosts_than_possible_lacks_a_copy() -> None:
    one, two = {A: "one", B: "one", C: "one"}, {A: "one", B: "one", C: "two"}
    assert placed(PLACED, 1, one).short == 0
    assert placed(PLACED, 1, two).short == 2, "only block 1 has a copy on host two"
