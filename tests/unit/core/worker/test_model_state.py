"""Where blocks are, and which version the model has, across placements and incarnations."""

from __future__ import annotations

from paceline.core.worker.model_state import ModelState
from paceline.types import Placement


def placed(epoch: int, *owners: str) -> Placement:
    return Placement(epoch, owners, dict.fromkeys(owners, "there"))


def test_a_version_survives_a_move_only_if_all_blocks_of_the_server_have_it() -> None:
    model = ModelState()
    assert (model.epoch, model.version) == (0, -1)
    model.place(placed(1, "a", "b"))
    assert (model.by_server, model.version) == ({"a": (0,), "b": (1,)}, -1)
    model.fill("a", 4)
    assert model.version == -1, "the blocks have several versions, so the model has none"
    model.fill("b", 4)
    assert model.version == 4
    model.place(placed(2, "b", "b"))
    assert (model.by_server, model.held, model.epoch) == ({"b": (0, 1)}, {"b": 4}, 2)
    model.place(placed(3, "a", "b"))
    model.fill("a", 5)
    model.place(placed(4, "b", "b"))
    assert model.held == {"b": -1}


def test_every_placement_makes_a_new_table_of_blocks() -> None:
    model = ModelState()
    model.place(placed(1, "a"))
    before = model.by_server
    assert not model.is_newer(placed(1, "a"))
    assert model.is_newer(placed(2, "a"))
    model.place(placed(1, "a"))
    assert model.by_server == before
    assert model.by_server is not before


def test_a_worker_holds_no_version_when_an_incarnation_begins() -> None:
    model = ModelState()
    model.place(placed(1, "a", "b"))
    for server in ("a", "b"):
        model.fill(server, 7)
    assert not model.enter(0)
    assert model.version == 7
    assert model.enter(1)
    assert (model.incarnation, model.held) == (1, {"a": -1, "b": -1})
