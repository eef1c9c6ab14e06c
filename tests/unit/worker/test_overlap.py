"""When a worker sends gradients while backward runs; reducers/test_servers.py tests what it sends."""

from __future__ import annotations

from paceline.worker.overlap import SMALLEST_NBYTES, pays


def test_large_pushes_overlap_with_backward_if_a_core_is_free_or_a_server_is_on_another_host() -> None:
    here, there = ["tcp://127.0.0.1:5", "inproc://server-0"], ["tcp://127.0.0.1:5", "tcp://10.0.0.2:5"]
    large = SMALLEST_NBYTES
    assert not pays(large, here, cores=2, busy=2)
    assert pays(large, here, cores=3, busy=2)
    assert pays(large, there, cores=2, busy=2)
    assert not pays(large - 1, there, cores=3, busy=2)
