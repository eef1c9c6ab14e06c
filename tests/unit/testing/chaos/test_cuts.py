"""Cuts: victims, directions and lengths."""

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
def test_every_pair_can_be_cut(kind: str) -> None:
    found = {frozenset((cut.victim, other)) for cut in cuts(kind) for other in cut.others}
    wanted = {frozenset(pair) for pair in itertools.product(SERVERS, [COORDINATOR, *WORKERS])}
    wanted |= {frozenset(pair) for pair in itertools.combinations(SERVERS, 2)}
    wanted |= {frozenset((worker, COORDINATOR)) for worker in WORKERS}
    assert wanted <= found
    assert all(cut.victim not in cut.others for cut in cuts(kind))


def test_a_one_way_cut_closes_one_direction_and_others_both() -> None:
    for cut in (*cuts(SYMMETRIC), *cuts(FLAPPING)):
        assert cut.ways == {(b, a) for a, b in cut.ways}, "other cuts close both directions"
    ways = [cut.ways for cut in cuts(ONE_WAY)]
    assert all(not closed & {(b, a) for a, b in closed} for closed in ways)
    assert {cut.victim for cut in cuts(ONE_WAY) if all(a == cut.victim for a, _ in cut.ways)} >= set(SERVERS)
    assert {cut.victim for cut in cuts(ONE_WAY) if all(b == cut.victim for _, b in cut.ways)} >= set(SERVERS)


def test_a_cut_lasts_between_1_and_9_seconds() -> None:
    short, long = choose(SYMMETRIC, 0.5, 0.0, SERVERS, WORKERS), choose(SYMMETRIC, 0.5, 1.0, SERVERS, WORKERS)
    assert short.phases == [(1.0, short.ways)]
    assert long.phases == [(9.0, long.ways)]


def test_a_flapping_cut_closes_and_opens() -> None:
    cut = choose(FLAPPING, 0.5, 0.5, SERVERS, WORKERS)
    closed = [bool(ways) for _, ways in cut.phases]
    assert closed == [True, False] * (len(closed) // 2)
    assert len(closed) > 4
    assert sum(lasts_s for lasts_s, _ in cut.phases) == pytest.approx(cut.lasts_s, abs=0.5)


def test_a_run_with_one_server_can_be_cut() -> None:
    for draw in DRAWS:
        cut = choose(SYMMETRIC, draw, 0.9, ["server-0"], [])
        assert (cut.victim, cut.others) == ("server-0", (COORDINATOR,))
