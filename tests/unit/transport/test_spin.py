"""Looking before sleeping: briefly, where it pays, and not against those who compute."""

from __future__ import annotations

import os
import time

import pytest

from paceline.transport.loop import Loop, Source
from paceline.transport.spin import LONGEST_S, Spin


def looks(spin: Spin, waits: int) -> int:
    """In how many of the next waits it would look."""
    return sum(spin.budget_s() > 0 for _ in range(waits))


def test_where_it_pays_every_wait_looks() -> None:
    spin = Spin()
    for _ in range(100):
        assert spin.budget_s() == LONGEST_S
        spin.paid()


def test_in_vain_it_looks_seldom_and_comes_back_at_once_when_it_pays() -> None:
    spin = Spin()
    looked = 0
    for _ in range(2000):
        if spin.budget_s():
            looked += 1
            spin.in_vain()
    assert 3 < looked < 20
    while not spin.budget_s():
        pass
    spin.paid()
    assert looks(spin, 100) == 100


def test_on_a_crowded_core_it_looks_seldom_and_comes_back_when_it_pays() -> None:
    spin = Spin()
    assert not spin.crowded(2e-6)
    looked = 0
    for _ in range(2000):
        if spin.budget_s():
            looked += 1
            assert spin.crowded(0.003)
    assert looked < 30
    for _ in range(20_000):
        if spin.budget_s():
            spin.paid()
    assert looks(spin, 100) == 100


def test_some_turns_lost_outweigh_many_looks_that_paid() -> None:
    spin = Spin()
    looked = 0
    for wait in range(5000):
        if spin.budget_s():
            looked += 1
            if wait % 10 == 0:
                spin.crowded(0.002)
            else:
                spin.paid()
    assert looked < 1000


def test_a_loop_without_near_peers_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    gave_way = 0

    def give_way() -> None:
        nonlocal gave_way
        gave_way += 1

    monkeypatch.setattr(os, "sched_yield", give_way)
    reader, writer = os.pipe()
    loop = Loop()
    loop.watch([Source(reader, lambda: False)])
    while loop.read_one():
        pass
    for spins in (0, 1):
        loop.spins = spins
        before = time.monotonic()
        loop.wait(0.01)
        assert 0.0099 <= time.monotonic() - before < 1.0
        assert bool(gave_way) == bool(spins)
    os.write(writer, b"x")
    loop.wait(5.0)
    assert loop.read_one()
    os.close(reader)
    os.close(writer)
