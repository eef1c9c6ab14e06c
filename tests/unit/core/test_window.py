"""Which steps a state contains, how old it may be, and what each step is made of."""

from __future__ import annotations

import pytest

from paceline.core.window import Watermark, may_lease, staleness
from paceline.types import INIT_STEP, UNLIMITED


def test_watermark_closes_gaps() -> None:
    mark = Watermark()
    for step in (INIT_STEP, 0, 2, 3):
        mark.add(step)
    assert (mark.low, mark.has(0), mark.has(1), mark.has(3), mark.has(4)) == (1, True, False, True, False)
    mark.add(1)
    assert mark.low == 4
    with pytest.raises(AssertionError, match="twice"):
        mark.add(2)


def test_staleness_is_never_negative() -> None:
    assert staleness(3, 7) == 0
    assert staleness(7, 3) == 4


def test_leases_go_one_step_further_than_reads() -> None:
    assert may_lease(0, 5, 4)
    assert not may_lease(0, 6, 4)
    assert may_lease(2, 7, 4)
    assert not may_lease(2, 8, 4)
    assert may_lease(UNLIMITED, 1000, 0)
