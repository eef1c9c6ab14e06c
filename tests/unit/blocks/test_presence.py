"""A parameter takes part in a step if some slot had a gradient of it."""

from __future__ import annotations

from paceline.blocks.chunks import Chunk
from paceline.blocks.presence import Presence
from paceline.types import BlockSpec, Kind, Piece

BLOCK = BlockSpec(3, Kind.PARAMETER, "float32", 128, 512, (Piece(0, 0, 10, 0), Piece(1, 0, 10, 64)))


def test_a_tensor_is_present_if_any_slot_had_a_gradient_for_it() -> None:
    presence = Presence()
    assert not presence.has(3, 0)
    presence.note(BLOCK, frozenset({1, 7}))
    assert (presence.has(3, 0), presence.has(3, 1)) == (True, False)
    assert not presence.has(4, 0), "another block was in no slot"
    presence.note(BLOCK, frozenset({7}))
    assert (presence.has(3, 0), presence.has(3, 1)) == (True, True)


def test_pieces_are_listed_only_if_one_of_them_has_no_gradient() -> None:
    presence = Presence()
    presence.note(BLOCK, frozenset({1}))
    assert presence.of_pieces(Chunk([BLOCK])) == [True, False]
    presence.note(BLOCK, frozenset())
    assert presence.of_pieces(Chunk([BLOCK])) is None


def test_a_backup_learns_the_presence_of_the_blocks_that_it_copies() -> None:
    primary, backup = Presence(), Presence()
    primary.note(BLOCK, frozenset({1}))
    backup.learn(primary.meta([BLOCK], 2.0, 1))
    assert (backup.has(3, 0), backup.has(3, 1), backup.touched) == (True, False, {3})
