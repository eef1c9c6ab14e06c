"""What a cut is made of."""

from __future__ import annotations

import itertools

import pytest

from paceline.testing.chaos.cuts import COORDINATOR, FLAPPING, KINDS, ONE_WAY, SYMMETRIC, Cut, choose

SERVERS = ["server-0", "server-1", "server-2"]
WORKERS = ["worker-0", "worker-1"]
DRAWS = [i / 500 for i in range(500)]


def cuts(kind: str) -> list[Cut]:
    return [choose(kind, draw, 0.5, SERVERS, WORKERS) for draw in DRAWS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_is_cut_sooner_or_later(kind: str) -> None:
    found = {frozenset((cut.victim, other)) for cut in cuts(kind) for other in cut.others}
    wanted = {frozenset(pair) for pair in itertools.product(SERVERS, [COORDINATOR, *WORKERS])}
    wanted |= {frozenset(pair) for pair in itertools.combinations(SERVERS, 2)}
    wanted |= {frozenset((worker, COORDINATOR)) for worker in WORKERS}
    assert wanted <= found
    assert all(cut.victim not in cut.others for cut in cuts(kind))


def test_which_ways_are_closed() -> None:
    for cut in (*cuts(SYMMETRIC), *cuts(FLAPPING)):
        assert cut.ways == {(b, a) for a, b in cut.ways}, "both ways"
    ways = [cut.ways for cut in cuts(ONE_WAY)]
    assert all(not closed & {(b, a) for a, b in closed} for closed in ways)
    assert {cut.victim for cut in cuts(ONE_WAY) if all(a == cut.victim for a, _ in cut.ways)} >= set(SERVERS)
    assert {cut.victim for cut in cuts(ONE_WAY) if all(b == cut.victim for _, b in cut.ways)} >= set(SERVERS)


def test_a_cut_lasts_as_long_as_it_says() -> None:
    short, long = choose(SYMMETRIC, 0.5, 0.0, SERVERS, WORKERS), choose(SYMMETRIC, 0.5, 1.0, SERVERS, WORKERS)
    assert short.phases == [(1.0, short.ways)]
    assert long.phases == [(9.0, long.ways)]


def test_a_flapping_one_closes_and_opens() -> None:
    cut = choose(FLAPPING, 0.5, 0.5, SERVERS, WORKERS)
    closed = [bool(ways) for _, ways in cut.phases]
    assert closed == [True, False] * (len(closed) // 2)
    assert len(closed) > 4
    assert sum(lasts_s for lasts_s, _ in cut.phases) == pytest.approx(cut.lasts_s, abs=0.5)


def test_one_server_alone() -> None:
    for draw in DRAWS:
        cut = choose(SYMMETRIC, draw, 0.9, ["server-0"], [])
        assert (cut.victim, cut.others) == ("server-0", (COORDINATOR,))
