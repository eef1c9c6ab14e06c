"""When it pays to send gradients while backward runs; what is sent is in test_servers.py."""

from __future__ import annotations

from paceline.worker.overlap import SMALLEST_NBYTES, pays


def test_overlap_pays_beside_a_free_core_or_another_host() -> None:
    here, there = ["tcp://127.0.0.1:5", "inproc://server-0"], ["tcp://127.0.0.1:5", "tcp://10.0.0.2:5"]
    large = SMALLEST_NBYTES
    assert not pays(large, here, cores=2, busy=2)
    assert pays(large, here, cores=3, busy=2)
    assert pays(large, there, cores=2, busy=2)
    assert not pays(large - 1, there, cores=3, busy=2)
