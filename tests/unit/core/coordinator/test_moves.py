"""What moves blocks between servers and members: the copies of one kind, and whether it has every block."""

from __future__ import annotations

from tests.kit.group import MEMBERS, moving_job

from paceline.core.coordinator.moves import has_all, side, with_copies
from paceline.types import Placement

BOTH = Placement(3, ("server-0", "server-1"), {}, (("member-0", "member-1"), ("member-0",)))


def test_a_side_has_the_copies_on_its_nodes() -> None:
    members = side(BOTH, MEMBERS)
    assert (members.owners, members.backups) == (("member-0", "member-0"), (("member-1",), ()))
    alone = side(BOTH, ("member-1",))
    assert (alone.owners, alone.backups) == (("member-1", "server-1"), ((), ("member-0",))), "block 1 is not there"


def test_copies_of_the_other_side_are_added_once() -> None:
    owners, backups = ("server-0", "server-0"), (("member-0",), ("server-1",))
    assert with_copies(owners, backups, BOTH, MEMBERS) == (("member-0", "member-1"), ("server-1", "member-0"))
    assert with_copies(owners, (), BOTH, ()) == ()


def test_a_group_needs_a_member_with_every_block_and_servers_need_every_block_somewhere() -> None:
    assert has_all(BOTH, ["member-0"], grouped=True)
    assert not has_all(BOTH, ["member-1"], grouped=True)
    assert has_all(BOTH, ["server-0", "server-1"], grouped=False)
    assert not has_all(BOTH, ["server-0"], grouped=False)


def test_a_move_that_is_due_says_what_it_waits_for() -> None:
    job = moving_job("bsp@1,allreduce@2,bsp")
    moves = job.core.machines.rebalance.moves
    assert moves.awaited == ""
    job.finish_step(0)
    assert "it waits for the copies of member-0 and member-1" in moves.awaited
