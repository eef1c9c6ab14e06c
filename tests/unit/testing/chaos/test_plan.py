"""The options of a campaign, and the plan that a seed gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.testing.chaos.campaigns import CAMPAIGNS, SCRIPT, words_of
from paceline.testing.chaos.plan import (
    CampaignSpec,
    Fault,
    Kind,
    Messages,
    make_plan,
    parse_faults,
    parse_limits,
    parse_shape,
)

FAULTS = {Fault(Kind.KILL, "worker"): 6, Fault(Kind.STOP, "coordinator"): 3, Fault(Kind.ALL, "run"): 1}


def test_one_seed_gives_one_plan() -> None:
    plan = make_plan(FAULTS, 1)
    assert plan == make_plan(dict(reversed(FAULTS.items())), 1)
    assert Counter(planned.fault for planned in plan) == FAULTS
    assert [p.fault for p in plan] != [p.fault for p in make_plan(FAULTS, 2)]
    assert all(0.0 <= p.pause_s <= 0.5 and 0.0 <= p.draw < 1.0 for p in plan)
    assert len({p.pause_s for p in plan}) == len(plan), "every fault has its own pause"


def test_adds_and_drains_alternate() -> None:
    faults = {Fault(Kind.ADD, "server"): 5, Fault(Kind.DRAIN, "server"): 3, Fault(Kind.KILL, "worker"): 9}
    for seed in range(20):
        plan = [planned.fault for planned in make_plan(faults, seed)]
        assert Counter(plan) == faults
        kinds = [fault.kind for fault in plan if fault.role == "server"]
        assert kinds == [Kind.ADD, Kind.DRAIN] * 3 + [Kind.ADD] * 2


def test_a_campaign_with_cuts_has_a_host_for_each_worker_and_server(tmp_path: Path) -> None:
    faults = {Fault(Kind.CUT, "one-way"): 2, Fault(Kind.ADD, "server"): 1}
    spec = CampaignSpec(script=SCRIPT, faults=faults, limits={}, dir=tmp_path, workers=2, servers=2)
    assert spec.cuts
    assert spec.hosts == ["host-1", "host-2", "host-3", "host-4", "host-5"]
    assert not replace(spec, faults={Fault(Kind.KILL, "worker"): 1}).hosts


@pytest.mark.parametrize("fault", [Fault(Kind.ALL, "run"), Fault(Kind.LAUNCHER, "launcher")])
def test_launchers_of_runs_that_are_cut_are_not_killed(tmp_path: Path, fault: Fault) -> None:
    with pytest.raises(UsageError, match="leave out --kill-all and --kill-launcher"):
        CampaignSpec(
            script=SCRIPT, faults={Fault(Kind.CUT, "one-way"): 1, fault: 1}, limits={}, dir=tmp_path, workers=2
        )


def test_fault_options_are_parsed_and_added() -> None:
    found = parse_faults(Kind.KILL, ["worker=6", "server=2", "worker=1"])
    assert found == {Fault(Kind.KILL, "worker"): 7, Fault(Kind.KILL, "server"): 2}
    assert [str(f) for f in sorted(found)] == ["kill server", "kill worker"]
    assert str(Fault(Kind.LAUNCHER, "launcher")) == "kill-launcher"
    assert Fault(Kind.SAVING, "server").measured_as == "server", (
        "a kill during a save is measured like any kill of a server"
    )
    assert Fault(Kind.STOP, "worker").measured_as == "stop worker"


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        (Kind.KILL, "worker", "--kill takes worker=N or server=N or coordinator=N, not 'worker'"),
        (Kind.KILL, "launcher=1", "not 'launcher=1'"),
        (Kind.KILL, "worker=-1", "not 'worker=-1'"),
        (Kind.TERM, "server=1", "--term takes worker=N, not 'server=1'"),
        (Kind.SAVING, "worker=1", "--kill-saving takes server=N or coordinator=N"),
        (Kind.CUT, "server=1", "--cut takes symmetric=N or one-way=N or flapping=N, not 'server=1'"),
        (Kind.DRAIN, "worker=1", "--drain takes server=N"),
    ],
)
def test_fault_options_with_a_wrong_role_or_number_are_refused(kind: Kind, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        parse_faults(kind, [text])


def test_limits_and_shapes_are_parsed() -> None:
    assert parse_limits(["worker=1", "coordinator=2.5"]) == {"worker": 1.0, "coordinator": 2.5}
    assert parse_shape("3x1") == (3, 1)
    with pytest.raises(UsageError, match="--limit"):
        parse_limits(["worker"])
    with pytest.raises(UsageError, match=r"nothing is measured as 'sever'; known are .* server"):
        parse_limits(["sever=2"])
    for wrong in ("3", "0x1", "3x", "axb"):
        with pytest.raises(UsageError, match="a shape is WORKERSxSERVERS"):
            parse_shape(wrong)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"faults": {}}, "nothing to inject"),
        ({"script": Path("nowhere.py")}, "nowhere.py is not a file"),
        ({"mode": "sync"}, "mode 'sync'"),
        ({"workers": 0}, "--workers"),
        ({"lease_s": 0.3}, "--lease"),
        ({"per_round": -1}, "--per-round"),
        ({"replicas": 2}, "--replicas 2 needs 3 servers, .* is 2"),
        ({"replicas": -1}, "--replicas must be 0 or more"),
        ({"faults": {Fault(Kind.DRAIN, "server"): 2}}, "--drain would leave 0 of 2 servers"),
        ({"faults": {Fault(Kind.DRAIN, "server"): 1}, "replicas": 1}, "--drain would leave 1 of 2 .* needs 2"),
        ({"plain_shape": (1, 1)}, "--plain-shape needs --slots"),
    ],
)
def test_a_campaign_is_checked_before_anything_starts(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=named):
        CampaignSpec(**{"script": SCRIPT, "faults": FAULTS, "limits": {}, "dir": tmp_path, **changes})


def test_probabilities_of_message_faults_are_checked() -> None:
    with pytest.raises(UsageError, match="--drop is a probability"):
        Messages(drop=1.0)
    assert Messages(drop=0.1, delay=0.2).kinds == ("drop", "delay")


def test_the_long_campaigns_have_the_sizes_of_the_documentation() -> None:
    """Their figures are in docs/guarantees.md."""
    assert SCRIPT.is_file()
    words = {name: set(words_of(name)) for name in CAMPAIGNS}
    assert {"worker=100", "coordinator=100", "bsp"} <= words["kills"]
    assert {"server=30", "bsp"} <= words["rewinds"]
    assert {"server=20", "coordinator=80"} <= words["saving"]
    assert {"worker=30", "coordinator=20"} <= words["stops"]
    assert {"--kill-launcher", "50"} <= words["launcher"]
    assert {"--kill-all", "3x1"} <= words["power"]
    for mode in ("ssp", "asp"):
        kills = [word for word in words_of(mode) if "=" in word]
        assert sum(int(word.partition("=")[2]) for word in kills) == 50
    numbers = {name: [w.partition("=")[2] for w in words_of(name) if "=" in w] for name in CAMPAIGNS}
    planned = {name: sum(int(number) for number in found if number.isdigit()) for name, found in numbers.items()}
    assert {"worker=50", "allreduce", "worker=1.5"} <= words["allreduce"]
    assert words["allreduce-tcp"] - words["allreduce"] == {"--lane", "tcp"}
    assert {"worker=20"} <= words["allreduce-stops"]
    assert words_of("allreduce-elastic").count("worker=20") == 2
    assert {"mode=30", "worker=20", "coordinator=10"} <= words["live"]
    assert {"server=100", "--replicas", "server=2"} <= words["failover"]
    assert {"server=50", "ssp:3", "server=2"} <= words["failover-ssp"]
    assert {"server=50", "asp", "server=2"} <= words["failover-asp"]
    assert planned["roles"] == 200
    assert {"symmetric=30", "one-way=30", "flapping=30"} <= words["cuts"]
    assert words_of("servers").count("server=20") == 2
    assert planned["storm"] == 120
    for name in ("failover", "failover-ssp", "failover-asp", "roles", "cuts", "servers", "storm"):
        assert "--replicas 1" in CAMPAIGNS[name]
        assert "-s 3" in CAMPAIGNS[name]
