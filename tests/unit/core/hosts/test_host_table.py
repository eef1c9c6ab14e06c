"""What a supervisor knows of its hosts: who takes part, what runs there, and which hosts are lost."""

from __future__ import annotations

from tests.kit.simulated_hosts import VERSIONS, facts_of

from paceline.core.hosts.host_table import (
    SILENT_S,
    CutOff,
    Gone,
    HostTable,
    Joined,
    Leaves,
    Output,
    Reported,
    Say,
)
from paceline.messages.base import Message
from paceline.messages.hosts import (
    AgentBeat,
    EndHost,
    Enlist,
    EnlistAgain,
    Enlisted,
    Report,
    Reports,
    RoleEnded,
    RoleLine,
    RunningRole,
    SupervisorBeat,
    TurnedAway,
)
from paceline.types import NodeId

W0, W1 = RunningRole("worker-0", 1), RunningRole("worker-1", 1)
LINE = RoleLine("worker-0", 1, "OUT", "hello")


def made() -> HostTable:
    return HostTable("run", "runs/x", VERSIONS, 30.0, "10.0.0.9")


def enlist(
    table: HostTable,
    host: str = "a",
    peer: NodeId = "agent/a-1",
    *roles: RunningRole,
    agent: str = "",
    reported: int = 0,
    acknowledged: int = 0,
    now: float = 0.0,
    run: str = "",
) -> list[Output]:
    """Let an agent enlist; what follows until it is welcomed."""
    message = Enlist(7, agent or f"{host}-1", facts_of(host), f"/cache/{host}", run, roles, reported, acknowledged)
    outputs = table.handle(peer, message, now)
    for output in list(outputs):
        if isinstance(output, Joined):
            outputs += table.welcome(output)
    return outputs


def with_roles(*roles: RunningRole) -> HostTable:
    """A table with one host, `a`, on which `roles` count and run."""
    table = made()
    enlist(table)
    for role in roles:
        table.assign("a", role.name, role.start)
    return table


def reports(table: HostTable, first: int, *items: Report, peer: NodeId = "agent/a-1") -> list[Report]:
    outputs = table.handle(peer, Reports(first, items), 0.1)
    return [output.report for output in outputs if isinstance(output, Reported)]


def said(outputs: list[Output]) -> list[Message]:
    return [output.message for output in outputs if isinstance(output, Say)]


def gone(outputs: list[Output]) -> list[Gone]:
    return [output for output in outputs if isinstance(output, Gone)]


def pass_time(table: HostTable, begin: float, end: float, *heard: NodeId) -> list[Output]:
    """Let time pass, in which only the agents `heard` send heartbeats."""
    outputs: list[Output] = []
    for step in range(int((end - begin) * 2) + 1):
        now = begin + step / 2
        for peer in heard:
            outputs += table.handle(peer, AgentBeat(), now)
        outputs += table.tick(now, "")
    return outputs


# ---------------------------------------------------------------- enlisting


def test_a_new_host_joins_and_its_agent_learns_the_run_and_the_term() -> None:
    table = made()
    joined, answer = enlist(table)
    assert joined == Joined("a", facts_of("a"), False, (), 7)
    assert answer == Say("agent/a-1", Enlisted(7, "run", "runs/x", 30.0, 0, ()))
    assert table.host_at("agent/a-1") == "a"
    assert [load.name for load in table.loads(())] == ["a"]


def test_an_agent_that_returns_keeps_its_roles_and_its_reports() -> None:
    table = with_roles(W0)
    reports(table, 1, LINE)
    assert table.session_lost("agent/a-1") == [CutOff("a")]
    assert table.loads(()) == [], "a host that is cut off gets no roles"
    joined, answer = enlist(table, "a", "agent/a-2", W0, reported=1)
    assert isinstance(joined, Joined)
    assert joined.again
    assert answer == Say("agent/a-2", Enlisted(7, "run", "runs/x", 30.0, 1, (W0,)))
    assert [load.workers for load in table.loads(())] == [1]


def test_the_end_of_a_session_that_was_replaced_changes_nothing() -> None:
    table = with_roles(W0)
    enlist(table, "a", "agent/a-2", W0)
    assert table.session_lost("agent/a-1") == []
    assert table.hosts["a"].peer == "agent/a-2"


def test_a_second_agent_with_the_name_of_a_host_is_turned_away_with_the_remedy() -> None:
    table = with_roles(W0)
    (answer,) = said(enlist(table, "a", "agent/x", agent="a-2"))
    assert answer == TurnedAway(7, "another agent is called a, at 10.0.0.1: give each host its own --name")
    assert table.hosts["a"].peer == "agent/a-1"


def test_an_agent_that_is_started_again_waits_until_the_earlier_one_is_lost() -> None:
    table = with_roles(W0)
    table.session_lost("agent/a-1")
    (answer,) = said(enlist(table, "a", "agent/x", agent="a-2"))
    assert isinstance(answer, TurnedAway)
    assert not answer.final
    table.declared([("worker-0", 1)], 1.0)
    assert gone(table.declared([], 2.0)) == [
        Gone("a", "its agent does not answer, and the coordinator has lost all its roles", (W0,))
    ]
    assert isinstance(said(enlist(table, "a", "agent/x", agent="a-2"))[0], Enlisted)


def test_other_versions_and_other_runs_are_turned_away() -> None:
    table = made()
    other = Enlist(1, "a-1", facts_of("a", versions={"paceline": "0"}), "/cache/a")
    (answer,) = said(table.handle("agent/a-1", other, 0.0))
    assert isinstance(answer, TurnedAway)
    assert answer.final
    assert "install the same version of Paceline on every host" in answer.reason
    assert table.problems == {"a": answer.reason}
    loopback = Enlist(1, "a-1", facts_of("a", address="127.0.0.1"), "/cache/a")
    (answer,) = said(table.handle("agent/a-1", loopback, 0.0))
    assert isinstance(answer, TurnedAway)
    assert "other hosts cannot reach a loopback address" in answer.reason
    (answer,) = said(enlist(table, run="another"))
    assert isinstance(answer, TurnedAway)
    assert "serves another run (another)" in answer.reason
    assert table.hosts == {}
    enlist(table)
    assert table.problems == {}, "the host takes part now"


# ---------------------------------------------------------------- reports


def test_each_report_is_taken_once_and_in_order() -> None:
    table = with_roles(W0)
    second = RoleLine("worker-0", 1, "OUT", "two")
    assert reports(table, 1, LINE) == [LINE]
    assert reports(table, 1, LINE, second) == [second]
    assert reports(table, 4, LINE) == [], "a report before it is missing"
    assert reports(table, 3, RoleEnded("worker-0", 1, 0)) == [RoleEnded("worker-0", 1, 0)]
    assert table.hosts["a"].running == ()
    assert SupervisorBeat("", 3) in said(table.tick(0.2, ""))


def test_the_end_of_a_start_that_does_not_count_is_dropped() -> None:
    table = with_roles(RunningRole("worker-0", 2))
    assert reports(table, 1, RoleEnded("worker-0", 1, -9)) == []
    assert table.hosts["a"].roles == {"worker-0": 2}


def test_an_order_that_was_lost_with_its_session_is_reported_as_an_end() -> None:
    table = with_roles(W0, W1)
    table.session_lost("agent/a-1")
    outputs = enlist(table, "a", "agent/a-2", W1)
    assert outputs[-1] == Reported("a", RoleEnded("worker-0", 1, -9, "its host was cut off"))
    assert table.hosts["a"].running == (W1,)


def test_an_order_is_not_lost_if_the_agent_enlists_twice_in_a_session() -> None:
    """A slow agent is asked several times to enlist. It has sent the second answer before it gets an order."""
    table = made()
    enlist(table)
    table.session_lost("agent/a-1")
    assert enlist(table)[0] == Joined("a", facts_of("a"), True, (), 7, was_away=True)
    table.assign("a", W0.name, W0.start)
    joined, answer = enlist(table)
    assert joined == Joined("a", facts_of("a"), True, (), 7), "nobody was told that it was away"
    assert answer == Say("agent/a-1", Enlisted(7, "run", "runs/x", 30.0, 0, (W0,))), "the agent keeps the start"
    assert table.hosts["a"].running == (W0,)


def test_an_end_that_the_agent_reports_again_counts_before_an_order_counts_as_lost() -> None:
    table = with_roles(W0)
    table.session_lost("agent/a-1")
    outputs = enlist(table, "a", "agent/a-2", reported=1)
    assert not any(isinstance(output, Reported) for output in outputs)
    end = RoleEnded("worker-0", 1, 5)
    assert reports(table, 1, end, peer="agent/a-2") == [end]


def test_a_new_supervisor_gets_the_reports_that_nobody_acknowledged() -> None:
    table = made()
    (_, answer) = enlist(table, "a", "agent/a-1", W0, reported=9, acknowledged=6, run="run")
    assert isinstance(answer, Say)
    assert isinstance(answer.message, Enlisted)
    assert answer.message.seen == 6
    assert reports(table, 7, LINE) == [LINE]


def test_a_host_that_returns_after_it_was_given_up_repeats_no_report() -> None:
    table = with_roles(W0)
    reports(table, 1, LINE)
    table.session_lost("agent/a-1")
    pass_time(table, 0.0, 60.0)
    assert table.hosts == {}
    _, answer = enlist(table, "a", "agent/a-2", W0, reported=2, run="run", now=61.0)
    assert answer == Say("agent/a-2", Enlisted(7, "run", "runs/x", 30.0, 1, ())), "and its old roles do not count"
    assert reports(table, 1, LINE, LINE, peer="agent/a-2") == [LINE]


# ---------------------------------------------------------------- losses


def test_a_host_whose_roles_the_coordinator_still_counts_is_not_lost_before_its_term() -> None:
    table = with_roles(W0)
    table.session_lost("agent/a-1")
    assert table.declared([("worker-0", 1)], 1.0) == []
    outputs = pass_time(table, 1.0, 37.5)
    assert gone(outputs) == []
    (lost,) = gone(pass_time(table, 38.0, 40.0))
    assert lost.roles == (W0,)
    assert "has not been heard for 38 s" in lost.reason


def test_a_role_that_was_never_a_member_may_still_register() -> None:
    table = with_roles(W0, W1)
    table.declared([("worker-0", 1)], 0.5)
    table.session_lost("agent/a-1")
    assert table.declared([], 1.0) == []
    table.declared([("worker-1", 1)], 1.5)
    assert len(gone(table.declared([], 2.0))) == 1


def test_an_earlier_start_that_was_a_member_says_nothing_of_a_later_one() -> None:
    table = with_roles(W0)
    table.declared([("worker-0", 1)], 0.5)
    reports(table, 1, RoleEnded("worker-0", 1, -9))
    table.assign("a", "worker-0", 2)
    table.session_lost("agent/a-1")
    assert table.declared([], 1.0) == []


def test_a_host_that_answers_is_not_lost_although_the_coordinator_has_lost_its_roles() -> None:
    table = with_roles(W0)
    table.declared([("worker-0", 1)], 0.5)
    assert table.declared([], 1.0) == []


def test_silence_cuts_a_host_off_and_a_word_brings_it_back() -> None:
    table = with_roles(W0)
    outputs = pass_time(table, 0.0, SILENT_S + 1.0)
    assert [output for output in outputs if not isinstance(output, Say)] == [CutOff("a")]
    assert table.handle("agent/a-1", AgentBeat(), 4.5) == [CutOff("a", back=True)]


def test_a_host_that_is_not_heard_hears_nothing_either() -> None:
    # Else its agent, which hears the supervisor, keeps its roles beyond the time at which the host counts as lost.
    table = with_roles(W0)
    pass_time(table, 0.0, SILENT_S + 0.5)
    assert said(pass_time(table, SILENT_S + 1.0, 20.0)) == []
    table.handle("agent/a-1", AgentBeat(), 20.5)
    assert said(table.tick(21.0, "tcp://c:1")) == [SupervisorBeat("tcp://c:1", 0)]


def test_pauses_of_the_supervisor_are_no_silence_of_a_host() -> None:
    table = with_roles(W0)
    table.tick(0.0, "")
    assert gone(table.tick(500.0, "")) == []
    assert not table.hosts["a"].is_cut_off


def test_the_agent_of_a_host_that_was_given_up_must_enlist_anew() -> None:
    table = with_roles(W0)
    pass_time(table, 0.0, 60.0)
    assert table.handle("agent/a-1", AgentBeat(), 61.0) == [Say("agent/a-1", EnlistAgain())]
    assert table.handle("agent/a-1", AgentBeat(), 61.1) == [], "not with every heartbeat"
    assert table.handle("agent/a-1", Reports(1, (LINE,)), 62.0) == []
    assert table.handle("agent/a-1", AgentBeat(), 62.0) == [Say("agent/a-1", EnlistAgain())]


# ---------------------------------------------------------------- leaving


def test_a_host_that_must_leave_says_so_once_and_gets_no_more_roles() -> None:
    table = with_roles(W0)
    assert table.handle("agent/a-1", AgentBeat(True), 0.5) == [Leaves("a")]
    assert table.handle("agent/a-1", AgentBeat(True), 1.0) == []
    assert table.loads(()) == []


def test_a_drain_can_be_undone() -> None:
    table = with_roles(W0)
    table.drain("a")
    assert table.loads(()) == []
    table.drain("a", undo=True)
    assert len(table.loads(())) == 1
    table.drain("nobody")


def test_an_empty_host_is_dismissed_and_its_agent_ends() -> None:
    table = with_roles()
    assert table.dismiss("a", "empty") == [Say("agent/a-1", EndHost("empty")), Gone("a", "empty", ())]
    assert table.hosts == {}
    assert table.host_at("agent/a-1") is None


def test_a_host_that_is_cut_off_can_be_dismissed() -> None:
    table = with_roles()
    table.session_lost("agent/a-1")
    assert table.dismiss("a", "empty") == [Gone("a", "empty", ())]


def test_loads_count_workers_and_servers_apart() -> None:
    table = with_roles(W0, W1, RunningRole("server-0", 1))
    (load,) = table.loads(["server-0"])
    assert (load.workers, load.servers, load.cores) == (2, 1, 2)
    host = table.host_of("worker-1")
    assert host is table.hosts["a"]
    assert table.host_of("worker-9") is None
