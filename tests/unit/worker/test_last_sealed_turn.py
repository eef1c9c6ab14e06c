"""Whether a lease is for the slot and the version that the worker sealed last."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline.messages import Grant
from paceline.types import Fence, Segment
from paceline.worker.last_sealed_turn import SealedTurn

SEGMENT = Segment(0, 0, 0, 0, 100, 1, 6400, 2, 64, True, False, 0, "bsp")
GRANT = Grant(1, 1, 0, 1, 3, 1, 2, Fence(1, 1), SEGMENT, True)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"fence": Fence(2, 9), "epoch": 2, "req": 7, "generation": 2, "lead": False}, True),
        ({"incarnation": 1}, False),
        ({"step": 4}, False),
        ({"slot": 0}, False),
        ({"segment": msgspec.structs.replace(SEGMENT, batch_size=32)}, False),
    ],
)
def test_a_lease_of_the_slot_sealed_last_is_recognised(changes: dict[str, Any], same: bool) -> None:
    turn = SealedTurn(GRANT, 3, 0, 1.0, (), {}, 0.1, {})
    assert turn.is_of(msgspec.structs.replace(GRANT, **changes)) == same
    assert not turn._replace(version=-1).is_of(GRANT), "the turn was computed on blocks of several versions"
