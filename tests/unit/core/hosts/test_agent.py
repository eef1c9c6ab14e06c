"""What an agent does: it starts, signals and ends roles as its supervisor says, and reports each end."""

from __future__ import annotations

import signal

from tests.kit.simulated_hosts import facts_of

from paceline.core.hosts.agent import (
    AgentCore,
    Announce,
    Beat,
    Begin,
    Effect,
    Over,
    SignalProcess,
    StartProcess,
    Tell,
)
from paceline.messages.base import Message
from paceline.messages.hosts import (
    AgentBeat,
    EndHost,
    Enlist,
    EnlistAgain,
    Enlisted,
    Reports,
    RoleEnded,
    RoleLine,
    RunningRole,
    SavedPiece,
    SignalRole,
    StartRole,
    SupervisorBeat,
    TurnedAway,
)

FACTS = facts_of("a")
KILL_W0 = SignalProcess("worker-0", signal.SIGKILL, group=True)


def order(name: str, start: int) -> StartRole:
    return StartRole(name, start, b"{}", "/", {})


def told(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Tell)]


def enlist(core: AgentCore, now: float = 0.0) -> Enlist:
    (message,) = told(core.connected(now))
    assert isinstance(message, Enlist)
    return message


def enlisted(*starts: StartRole, now: float = 0.0) -> AgentCore:
    """An agent that takes part, and has started some roles."""
    core = AgentCore("a-1", FACTS, "/cache/a")
    req = enlist(core, now).req
    core.handle(Enlisted(req, "run", "runs/x", 30.0, 0), now)
    for start in starts:
        core.handle(start, now)
    return core


def answer(core: AgentCore, *roles: RunningRole, seen: int = 0, now: float = 1.0) -> list[Effect]:
    """Begin a new session in which `roles` count; return what the agent does."""
    core.disconnected()
    return core.handle(Enlisted(enlist(core, now).req, "run", "runs/x", 30.0, seen, roles), now)


# ---------------------------------------------------------------- enlisting


def test_a_session_begins_with_the_facts_the_roles_and_the_numbers_of_the_reports() -> None:
    core = AgentCore("a-1", FACTS, "/cache/a")
    assert enlist(core) == Enlist(1, "a-1", FACTS, "/cache/a")
    core.handle(Enlisted(1, "run", "runs/x", 30.0, 0), 0.0)
    core.handle(order("worker-0", 3), 0.0)
    core.line("worker-0", "OUT", "hello")
    core.line("worker-0", "OUT", "hello")
    core.handle(SupervisorBeat("", 1), 0.0)
    core.disconnected()
    assert enlist(core) == Enlist(2, "a-1", FACTS, "/cache/a", "run", (RunningRole("worker-0", 3),), 2, 1)


def test_the_directory_of_a_run_is_prepared_once() -> None:
    core = AgentCore("a-1", FACTS, "/cache/a")
    assert core.handle(Enlisted(enlist(core).req, "run", "runs/x", 30.0, 0), 0.0) == [Begin("run", "runs/x")]
    assert answer(core) == []


def test_an_answer_to_an_earlier_enlistment_is_ignored() -> None:
    core = enlisted(order("worker-0", 1))
    core.disconnected()
    req = enlist(core).req
    assert core.handle(Enlisted(req - 1, "run", "runs/x", 30.0, 0), 0.0) == []
    assert core.tick(0.1) == [], "it does not take part before the answer"


def test_roles_that_do_not_count_any_more_are_killed() -> None:
    core = enlisted(order("worker-0", 1), order("worker-1", 1))
    effects = answer(core, RunningRole("worker-0", 2), RunningRole("worker-1", 1))
    assert effects == [KILL_W0]
    assert answer(core) == [KILL_W0, SignalProcess("worker-1", signal.SIGKILL, group=True)]


def test_a_supervisor_that_has_given_up_the_host_makes_the_agent_enlist_anew() -> None:
    core = enlisted(order("worker-0", 1))
    (again,) = told(core.handle(EnlistAgain(), 1.0))
    assert isinstance(again, Enlist)
    assert again.roles == (RunningRole("worker-0", 1),)
    assert core.tick(1.1) == [], "no heartbeat before the answer"


def test_an_agent_that_ends_neither_offers_its_host_again_nor_starts_roles() -> None:
    """The supervisor has dismissed the host, and hears one more heartbeat: it asks the agent to enlist."""
    core = enlisted(order("worker-0", 1))
    assert core.handle(EndHost("the host is empty"), 1.0) == [Over("the host is empty")]
    assert core.handle(EnlistAgain(), 1.0) == []
    assert core.handle(order("worker-1", 1), 1.0) == []
    assert told(core.ended(RoleEnded("worker-0", 1, -9))), "the last ends are reported"
    core.handle(SupervisorBeat("", 1), 1.1)
    assert core.has_reported
    core.disconnected()
    assert core.connected(2.0) == []


def test_an_agent_that_is_turned_away_ends_with_the_reason() -> None:
    core = AgentCore("a-1", FACTS, "/cache/a")
    req = enlist(core).req
    assert core.handle(TurnedAway(req, "use another --name"), 0.0) == [Over("use another --name", failed=True)]


def test_an_agent_that_must_wait_asks_again_in_the_same_session() -> None:
    core = AgentCore("a-2", FACTS, "/cache/a")
    req = enlist(core).req
    assert core.handle(TurnedAway(req, "not yet", final=False), 5.0) == []
    assert core.tick(5.5) == []
    (again,) = told(core.tick(6.0))
    assert isinstance(again, Enlist)
    assert core.tick(6.1) == [], "one question at a time"
    core.handle(TurnedAway(again.req, "not yet", final=False), 6.2)
    core.disconnected()
    assert core.tick(9.0) == [], "there is nobody to ask"


# ---------------------------------------------------------------- roles


def test_a_role_is_started_once_for_each_order() -> None:
    core = enlisted()
    assert core.handle(order("worker-0", 1), 0.0) == [StartProcess(order("worker-0", 1))]
    assert core.handle(order("worker-0", 1), 0.0) == []
    assert core.handle(order("worker-0", 0), 0.0) == [], "an order that came late"
    assert core.roles == {"worker-0": 1}


def test_an_order_waits_until_the_earlier_start_has_ended() -> None:
    core = enlisted(order("worker-0", 1))
    assert core.handle(order("worker-0", 2), 0.0) == [KILL_W0]
    assert core.roles == {"worker-0": 1}
    effects = core.ended(RoleEnded("worker-0", 1, -9))
    assert effects == [Tell(Reports(1, (RoleEnded("worker-0", 1, -9),))), StartProcess(order("worker-0", 2))]
    assert core.roles == {"worker-0": 2}


def test_an_order_that_waits_counts_as_a_role_in_the_next_session() -> None:
    core = enlisted(order("worker-0", 1))
    core.handle(order("worker-0", 2), 0.0)
    core.disconnected()
    assert enlist(core).roles == (RunningRole("worker-0", 1), RunningRole("worker-0", 2))
    assert answer(core, RunningRole("worker-0", 2)) == [KILL_W0]
    assert StartProcess(order("worker-0", 2)) in core.ended(RoleEnded("worker-0", 1, -9))


def test_an_order_that_waits_and_does_not_count_any_more_is_dropped() -> None:
    core = enlisted(order("worker-0", 1))
    core.handle(order("worker-0", 2), 0.0)
    assert answer(core) == [KILL_W0]
    assert told(core.ended(RoleEnded("worker-0", 1, -9))) == [Reports(1, (RoleEnded("worker-0", 1, -9),))]
    assert core.roles == {}


def test_a_signal_goes_only_to_the_start_that_it_names() -> None:
    core = enlisted(order("worker-0", 2))
    assert core.handle(SignalRole("worker-0", 1, 15), 0.0) == []
    assert core.handle(SignalRole("worker-1", 2, 15), 0.0) == []
    assert core.handle(SignalRole("worker-0", 2, 15), 0.0) == [SignalProcess("worker-0", 15, group=False)]
    assert core.handle(SignalRole("worker-0", 2, 9, True), 0.0) == [SignalProcess("worker-0", 9, group=True)]


def test_a_signal_to_an_order_that_waits_ends_it() -> None:
    core = enlisted(order("worker-0", 1))
    core.handle(order("worker-0", 2), 0.0)
    assert told(core.handle(SignalRole("worker-0", 2, 15), 0.0)) == [Reports(1, (RoleEnded("worker-0", 2, -15),))]
    assert core.ended(RoleEnded("worker-0", 1, -9)) == [Tell(Reports(2, (RoleEnded("worker-0", 1, -9),)))]
    assert core.roles == {}


# ---------------------------------------------------------------- reports


def test_lines_files_and_ends_are_reported_in_their_order() -> None:
    core = enlisted(order("worker-0", 4))
    piece = SavedPiece("model", 0, b"x", True)
    effects = [*core.line("worker-0", "OUT", "hello"), *core.saved(piece), *core.ended(RoleEnded("worker-0", 4, 0))]
    assert told(effects) == [
        Reports(1, (RoleLine("worker-0", 4, "OUT", "hello"),)),
        Reports(2, (piece,)),
        Reports(3, (RoleEnded("worker-0", 4, 0),)),
    ]
    assert not core.has_reported
    core.handle(SupervisorBeat("", 3), 0.0)
    assert core.has_reported


def test_reports_wait_for_a_supervisor_and_go_out_behind_the_last_one_that_it_saw() -> None:
    core = enlisted(order("worker-0", 1))
    core.line("worker-0", "OUT", "one")
    core.disconnected()
    assert core.line("worker-0", "OUT", "two") == []
    effects = answer(core, RunningRole("worker-0", 1), seen=1)
    assert told(effects) == [Reports(2, (RoleLine("worker-0", 1, "OUT", "two"),))]


def test_the_end_of_an_earlier_start_leaves_the_later_one() -> None:
    core = enlisted(order("worker-0", 2))
    core.ended(RoleEnded("worker-0", 1, -9))
    assert core.roles == {"worker-0": 2}


def test_an_acknowledgement_lets_reports_go_out_that_had_to_wait() -> None:
    core = enlisted(order("worker-0", 1))
    sent = sum(len(told(core.line("worker-0", "OUT", "x"))) for _ in range(500))
    assert sent < 500
    assert told(core.handle(SupervisorBeat("", 200), 0.0))


# ---------------------------------------------------------------- time


def test_the_coordinators_address_is_announced_when_it_changes() -> None:
    core = enlisted()
    assert core.handle(SupervisorBeat("", 0), 0.0) == []
    assert core.handle(SupervisorBeat("tcp://a:1", 0), 0.0) == [Announce("tcp://a:1")]
    assert core.handle(SupervisorBeat("tcp://a:1", 0), 0.0) == []
    assert core.handle(SupervisorBeat("tcp://a:2", 0), 0.0) == [Announce("tcp://a:2")]


def test_an_agent_ends_when_the_term_of_its_supervisor_has_passed() -> None:
    core = enlisted(order("worker-0", 1), now=10.0)
    core.handle(SupervisorBeat("", 0), 20.0)
    core.disconnected()
    assert core.tick(49.9) == []
    (over,) = core.tick(50.1)
    assert isinstance(over, Over)
    assert over.failed
    assert "not been heard for 30 s" in over.reason


def test_pauses_of_the_agent_count_since_the_supervisor_does_not_know_of_them() -> None:
    core = enlisted(order("worker-0", 1), now=10.0)
    for now in (20.0, 30.0, 39.0):
        assert not any(isinstance(effect, Over) for effect in core.tick(now))
    assert isinstance(core.tick(40.1)[0], Over)


def test_an_agent_without_a_run_waits_for_as_long_as_it_takes() -> None:
    core = AgentCore("a-1", FACTS, "/cache/a")
    assert core.tick(1e6) == []


def test_an_agent_that_must_leave_says_so_in_its_heartbeats() -> None:
    core = enlisted()
    assert core.tick(1.0) == [Beat(AgentBeat(False))]
    core.leave()
    assert core.leaving
    assert core.tick(1.1) == [Beat(AgentBeat(True))]


def test_the_end_of_the_run_ends_the_agent_without_a_failure() -> None:
    assert enlisted().handle(EndHost("the run has ended"), 1.0) == [Over("the run has ended")]
