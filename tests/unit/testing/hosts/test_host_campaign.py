"""Which faults a campaign on hosts plays, in which order."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.dev import command
from paceline.errors import UsageError
from paceline.testing.hosts import campaign as campaign_module
from paceline.testing.hosts.campaign import HostCampaign
from paceline.testing.hosts.faults import ADOPTION, AGENT_CUT, CUT, DRAIN, JOIN, KILL, ROLE_CUT
from paceline.testing.hosts.outcome import Outcome


def test_every_fault_that_was_asked_for_is_played() -> None:
    campaign = HostCampaign(kills=3, cuts=2, agent_cuts=2, role_cuts=4, adoptions=1)
    faults = campaign.faults()
    kinds = Counter(fault.kind for fault in faults)
    assert kinds == {KILL: 3, CUT: 2, AGENT_CUT: 2, ROLE_CUT: 4, ADOPTION: 1}
    assert {fault.host for fault in faults} <= {"a", "b", "c"}
    assert faults == HostCampaign(kills=3, cuts=2, agent_cuts=2, role_cuts=4, adoptions=1).faults()
    assert [fault.lasts_s for fault in faults if fault.kind == CUT] == [20.0, 20.0]


@pytest.mark.parametrize("kind", [AGENT_CUT, ROLE_CUT])
def test_cuts_of_a_part_of_a_host_are_shorter_and_longer_than_the_term_of_an_agent(kind: str) -> None:
    faults = HostCampaign(agent_cuts=4, role_cuts=4).faults()
    assert [fault.lasts_s for fault in faults if fault.kind == kind] == [10.0, 45.0, 10.0, 45.0]


@pytest.mark.parametrize(("joins", "drains", "hosts"), [(3, 3, 4), (2, 1, 4), (0, 1, 3), (1, 2, 4)])
def test_only_hosts_that_are_there_are_drained_and_only_others_join(joins: int, drains: int, hosts: int) -> None:
    campaign = HostCampaign(joins=joins, drains=drains, seed=5)
    there = set(campaign.first)
    assert (len(campaign.names), len(there)) == (hosts, 3)
    kinds = []
    for fault in campaign.faults():
        assert (fault.host in there) == (fault.kind == DRAIN)
        there ^= {fault.host}
        kinds.append(fault.kind)
    assert Counter(kinds) == Counter({JOIN: joins, DRAIN: drains})
    assert all(one != other for one, other in pairwise(kinds)), "they alternate"
    assert campaign.words[:4] == ["-w", "auto", "-s", "per-host"]


def test_with_all_reduce_there_are_no_servers() -> None:
    words = HostCampaign(kills=1, mode="allreduce").words
    assert words[:4] == ["-w", "3", "--insecure-collective", "--ordered"]
    assert "-s" not in words


def test_joins_without_drains_are_refused() -> None:
    with pytest.raises(UsageError, match="--joins 3 --drains 1: they alternate"):
        HostCampaign(joins=3, drains=1)


def test_the_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played: list[HostCampaign] = []

    def play(campaign: HostCampaign, *_: object) -> Outcome:
        played.append(campaign)
        return Outcome(problems=["worker-0 lives twice"])

    monkeypatch.setattr(campaign_module, "play", play)
    figures = tmp_path / "figures.json"
    words = ["--agent-cuts", "1", "--role-cuts", "2", "--adoptions", "3", "--joins", "4", "--drains", "5"]
    done = CliRunner().invoke(command, ["hosts", *words, "--mode", "asp", "--json", str(figures)])
    assert done.exit_code == 1, done.output
    assert played == [HostCampaign(agent_cuts=1, role_cuts=2, adoptions=3, joins=4, drains=5, mode="asp")]
    assert json.loads(figures.read_text())["problems"] == ["worker-0 lives twice"]
