"""More of what `test_sim` plays."""

from __future__ import annotations

import pytest
from tests.unit.sim.playing import PER_TEST, play


@pytest.mark.parametrize("start", range(1_000, 1_500, PER_TEST))
def test_seeds(start: int) -> None:
    play(start)
