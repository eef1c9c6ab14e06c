from __future__ import annotations

import pytest

from paceline.core.predict.batching import Batcher, BatchLimits, retry_after
from paceline.errors import RequestError


def batcher(**limits: float) -> Batcher:
    return Batcher(BatchLimits(**{"max_rows": 4, "delay_s": 1.0, "max_queued_rows": 10, **limits}))  # type: ignore[arg-type]


def test_a_batch_goes_when_it_is_full_or_when_its_oldest_request_has_waited() -> None:
    queue = batcher()
    queue.offer(1, 2, "k", now=0.0)
    assert queue.take(0.5) == ()
    assert queue.due() == 1.0
    queue.offer(2, 2, "k", now=0.5)
    assert queue.take(0.5) == (1, 2)
    queue.offer(3, 1, "k", now=1.0)
    assert queue.take(2.0) == (3,)
    assert (queue.queued_rows, len(queue), queue.due()) == (0, 0, None)


def test_without_a_delay_a_request_does_not_wait_for_others() -> None:
    queue = batcher(delay_s=0.0)
    queue.offer(1, 1, "k", now=0.0)
    assert queue.take(0.0) == (1,)


def test_only_requests_of_one_kind_are_computed_together_and_in_order() -> None:
    queue = batcher()
    for ticket, kind in enumerate("aaba"):
        queue.offer(ticket, 1, kind, now=0.0)
    assert queue.take(0.0) == (0, 1)
    assert queue.take(0.0) == (2,)
    assert queue.take(0.0) == ()
    assert queue.take(1.0) == (3,)


def test_a_request_that_is_larger_than_a_batch_goes_alone() -> None:
    queue = batcher()
    queue.offer(1, 9, "k", now=0.0)
    queue.offer(2, 1, "k", now=0.0)
    assert queue.take(0.0) == (1,)


def test_a_full_queue_refuses_with_the_time_that_it_needs_and_keeps_nothing() -> None:
    queue = batcher()
    queue.computed(10, 5.0)  # half a second a row, at first smoothed
    queue.offer(1, 8, "k", now=0.0)
    with pytest.raises(RequestError) as refused:
        queue.offer(2, 3, "k", now=0.0)
    assert refused.value.status == 429
    assert refused.value.retry_after_s == pytest.approx(8 * (0.01 + 0.2 * 0.49))
    assert (queue.queued_rows, len(queue)) == (8, 1)


def test_a_request_that_waited_too_long_and_one_whose_client_is_gone_are_taken_out() -> None:
    queue = batcher(deadline_s=2.0)
    for ticket in range(4):
        queue.offer(ticket, 1, "k", now=float(ticket) / 2)
    queue.withdraw(1)
    assert queue.queued_rows == 3
    assert queue.expire(2.0) == (0,)
    assert queue.expire(2.6) == ()
    assert queue.take(9.0) == (2, 3)
    assert queue.queued_rows == 0


def test_retry_after_is_whole_seconds() -> None:
    assert [retry_after(s) for s in (0.0, 0.2, 1.2, 1e9)] == [1, 1, 2, 60]
