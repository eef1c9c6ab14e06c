"""Statistics, verdicts and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kit.statuses import seen

from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.chaos.figures import Figures, RoundFigures, quantile, spread, table
from paceline.testing.chaos.plan import CampaignSpec, Fault, Kind, Messages
from paceline.testing.chaos.verify import missing_commits, origins_of
from paceline.testing.chaos.watch import Seen, Shown

WORKER = Fault(Kind.KILL, "worker")


def figures(**changes: Any) -> Figures:
    """The figures of a campaign that passes."""
    spec: dict[str, Any] = {"script": SCRIPT, "faults": {WORKER: 2}, "limits": {"worker": 1.0}, "dir": Path("x")}
    good = Figures(CampaignSpec(**{**spec, **changes}), "paceline dev chaos")
    good.fired[str(WORKER)] = 2
    good.measured("worker", 0.3, 2.0)
    good.measured("worker", 0.5, 2.5)
    good.rounds.append(RoundFigures("round-1", digest="d", reference="d", steps=50, restarts={"worker": 2}))
    return good


def test_quantiles_are_measured_values() -> None:
    assert quantile([3.0], 0.95) == 3.0
    hundred = [float(i) for i in range(1, 101)]
    assert [quantile(hundred, q) for q in (0.0, 0.5, 0.95, 1.0)] == [1.0, 50.0, 95.0, 100.0]
    assert spread([0.2, 0.1, 0.4]) == {"n": 3, "p50": 0.2, "p95": 0.4, "max": 0.4}


def test_a_campaign_without_failures_passes_and_shows_its_figures() -> None:
    good = figures()
    good.judge()
    result = json.loads(json.dumps(good.as_dict()))
    assert result["ok"], result["failures"]
    assert result["fired"] == {"kill worker": 2}
    assert result["digest_equal"] is True
    assert result["recovery_s"] == {"worker": {"n": 2, "p50": 0.3, "p95": 0.5, "max": 0.5}}
    assert result["restarts"] == {"worker": 2}
    assert result["steps"] == 50
    lines = table({"kills": result, "more": {**result, "ok": False, "digest_equal": False}})
    assert lines[0].startswith("campaign")
    assert "kills" in lines[1]
    assert "equal" in lines[1]
    assert "worker 0.30/0.50/0.50 (2)" in lines[1]
    assert "more FAILED" in lines[2]
    assert "DIFFERS" in lines[2]


def _break(name: str, value: object) -> Any:
    def change(it: Figures) -> None:
        setattr(it, name, value)

    return change


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda it: it.fired.update({"kill worker": -1}), "kill worker: 1 of 2 planned faults were injected"),
        (_break("lost_slots", 1), "1 slots were lost"),
        (_break("duplicate_slots", 2), "2 slots were applied twice"),
        (_break("grown_mb", [16.0, 51.0]), "strangers made the run take 51 MB more, above 50 MB"),
        (_break("lost_commits", 3), "3 commits are missing in the log"),
        (_break("needless_evictions", 1), "1 workers were evicted because the coordinator paused"),
        (_break("checkpoints_unloadable", 1), "no complete checkpoint"),
        (_break("rewinds", 1), "1 rewinds, but only 0 faults hit a server"),
        (_break("rounds", [RoundFigures("r", digest="d", reference="e")]), "digests differ"),
        (_break("rounds", []), "no round was compared"),
        (_break("recovery_s", {"worker": [1.5, 0.1]}), "p95 of 1.50 s, above 1.0 s"),
        (_break("recovery_s", {}), "was not measured"),
    ],
)
def test_each_broken_promise_fails_the_campaign(harm: Any, named: str) -> None:
    it = figures()
    harm(it)
    it.judge()
    assert len(it.failures) == 1
    assert named in it.failures[0]
    assert not it.as_dict()["ok"]


def test_planned_message_faults_must_fire_and_digests_are_compared_in_lock_step_only() -> None:
    it = figures(mode="asp", messages=Messages(drop=0.1, delay=0.1))
    it.fired["delay"] = 1
    it.rounds[0].reference = None
    it.judge()
    assert it.failures == ["drop: this fault of messages never happened"]
    assert it.as_dict()["digest_equal"] is None


def test_each_fault_of_a_server_allows_one_rewind() -> None:
    it = figures(faults={WORKER: 2, Fault(Kind.KILL, "server"): 1})
    it.fired["kill server"] = 1
    it.rewinds = 1
    it.judge()
    assert it.failures == []


def test_shown_versions_and_evictions_are_remembered() -> None:
    shown = Shown()
    statuses: list[Seen] = [
        seen(version=-1),
        seen(version=3),
        seen(version=4, lost_workers=1),
        seen(version=4, lost_workers=0, generation=2),
        seen(version=2, lost_workers=2, generation=2, incarnation=1),
    ]
    for status in statuses:
        shown.add(status)
    assert shown.versions == {0: {3, 4}, 1: {2}}
    assert shown.evictions == 3


def test_shown_commits_must_be_in_the_log() -> None:
    log = {(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (3, 0)}
    origins = {1: (0, 1), 2: (1, 2), 3: (-1, -1)}
    assert missing_commits({0: {1, 3}, 1: {1, 3}, 2: {0, 2}, 3: {0}}, log, origins) == []
    assert missing_commits({0: {4}}, log, origins) == [(0, 4)]
    assert missing_commits({1: {4}, 2: {3}}, log, origins) == [(1, 4), (2, 3)]
    assert missing_commits({3: {0, 1}}, log, origins) == [(3, 1)], (
        "an incarnation that began from nothing has no earlier commits"
    )
    assert origins_of([]) == {}


def test_with_replicas_a_rewind_fails_the_campaign() -> None:
    faults = {Fault(Kind.KILL, "server"): 2}
    for replicas, failures in ((0, []), (1, ["1 rewinds, but every block had 1 copies"])):
        it = figures(faults=faults, limits={}, replicas=replicas)
        it.fired["kill server"], it.rewinds = 2, 1
        it.judge()
        assert it.failures == failures


def test_slow_healing_after_a_cut_and_long_pauses_while_blocks_move_are_failures() -> None:
    cut, add = Fault(Kind.CUT, "one-way"), Fault(Kind.ADD, "server")
    it = figures(faults={cut: 1, add: 1}, limits={})
    it.fired[str(cut)] = it.fired[str(add)] = 1
    it.measured(str(cut), 0.2, 9.9)
    it.paused(str(add), 0.9)
    it.paused(str(cut), 7.0)  # a cut may stop all commits
    it.judge()
    assert it.failures == []
    assert it.as_dict()["pause_s"]["add server"]["max"] == 0.9
    it.measured(str(cut), 0.2, 10.1)
    it.paused(str(add), 1.2)
    it.judge()
    assert it.failures == [
        "cut one-way: the run recovered 10.1 s after the end of the cut, above 10.0 s",
        "add server: no commit for 1.20 s, above 1.0 s",
    ]


@pytest.mark.parametrize(
    ("pauses", "named"),
    [
        ([0.5] * 19 + [7.9], ""),
        ([0.5] * 18 + [3.1] * 2, "storm: no commit for p95 3.10 s"),
        ([0.5] * 99 + [8.1], "largest 8.10 s"),
        ([], "no time without a commit was measured"),
    ],
)
def test_a_storm_has_limits_and_may_rewind(pauses: list[float], named: str) -> None:
    storm = Fault(Kind.STORM, "server")
    result = figures(faults={storm: 2}, limits={}, replicas=1)
    result.fired[str(storm)] = 2
    result.count(rewinds=1)
    for pause_s in pauses:
        result.paused("storm", pause_s)
    result.judge()
    assert [named in text for text in result.failures] == ([True] if named else [])
