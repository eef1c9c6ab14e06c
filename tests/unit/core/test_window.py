"""Which steps a state contains, and how old the state for a gradient may be."""

from __future__ import annotations

import pytest

from paceline.core.window import Watermark, may_lease, staleness, window_refusal
from paceline.types import INIT_STEP, UNLIMITED


def test_the_watermark_advances_past_a_gap_once_the_gap_is_closed() -> None:
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


def test_a_gradient_is_refused_when_its_version_lacks_a_step_below_the_window() -> None:
    assert window_refusal(3, 5, 7, 2) is None
    assert window_refusal(3, 5, 7, 1) == ("stale", "step 5 may not be computed on version 7")
    assert window_refusal(UNLIMITED, 99, 7, 0) is None
    assert window_refusal(UNLIMITED, 99, 7, None) is not None, "a version whose watermark is forgotten is too old"


def test_a_slot_may_be_leased_one_step_before_its_state_can_be_read() -> None:
    assert may_lease(0, 5, 4)
    assert not may_lease(0, 6, 4)
    assert may_lease(2, 7, 4)
    assert not may_lease(2, 8, 4)
    assert may_lease(UNLIMITED, 1000, 0)
