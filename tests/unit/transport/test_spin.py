"""A port spins before it sleeps: briefly, only where spins pay, and not while other processes need the core."""

from __future__ import annotations

import os
import time

import pytest

from paceline.transport.loop import Loop, Source
from paceline.transport.spin import LONGEST_S, Spin


def spins_in(spin: Spin, waits: int) -> int:
    """Return in how many of the next waits the port would spin."""
    return sum(spin.budget_s() > 0 for _ in range(waits))


def test_every_wait_spins_where_spins_pay() -> None:
    spin = Spin()
    for _ in range(100):
        assert spin.budget_s() == LONGEST_S
        spin.paid()


def test_spins_in_vain_become_rare_and_return_at_once_when_one_pays() -> None:
    spin = Spin()
    spun = 0
    for _ in range(2000):
        if spin.budget_s():
            spun += 1
            spin.in_vain()
    assert 3 < spun < 20
    while not spin.budget_s():
        pass
    spin.paid()
    assert spins_in(spin, 100) == 100


def test_spins_on_a_crowded_core_become_rare_and_return_when_they_pay() -> None:
    spin = Spin()
    assert not spin.crowded(2e-6)
    spun = 0
    for _ in range(2000):
        if spin.budget_s():
            spun += 1
            assert spin.crowded(0.003)
    assert spun < 30
    for _ in range(20_000):
        if spin.budget_s():
            spin.paid()
    assert spins_in(spin, 100) == 100


def test_a_few_long_yields_outweigh_many_spins_that_paid() -> None:
    spin = Spin()
    spun = 0
    for wait in range(5000):
        if spin.budget_s():
            spun += 1
            if wait % 10 == 0:
                spin.crowded(0.002)
            else:
                spin.paid()
    assert spun < 1000


def test_a_port_without_peers_on_its_host_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    yields = 0

    def count() -> None:
        nonlocal yields
        yields += 1

    monkeypatch.setattr(os, "sched_yield", count)
    reader, writer = os.pipe()
    loop = Loop()
    loop.watch([Source(reader, lambda: False)])
    while loop.read_one():
        pass
    for near in (False, True):
        if near:
            loop.peer_is_near()
        before = time.monotonic()
        loop.wait(0.01)
        assert 0.0099 <= time.monotonic() - before < 1.0
        assert bool(yields) == near
    os.write(writer, b"x")
    loop.wait(5.0)
    assert loop.read_one()
    os.close(reader)
    os.close(writer)
