"""Rule 13, a start has a number: each start of a name has a higher one, and every report of an end names (name, start).

A name is started elsewhere only after its end was reported, or the coordinator declared it lost, or the term of its
agent has passed, at which the agent kills its roles.

Upheld by:
- `runtime.starts.next_start`: durable numbers, each returned once
- `core.hosts.host_table.HostTable._reports`: an end counts only for the start that counts
- `core.hosts.host_table.HostTable.declared`: which hosts are lost by the word of the coordinator
- `core.hosts.host_table.HostTable.tick`: which hosts are lost by their term; who is not heard hears nothing
- `core.hosts.agent.AgentCore.tick`: an agent whose term has passed ends its roles
- `core.hosts.agent.AgentCore._enlisted`: an agent kills the roles that do not count any more
- `core.hosts.agent.AgentCore._start`: a later start waits for the end of the earlier one
- `core.coordinator.membership.Membership._end_earlier`: the coordinator ends earlier starts of a name
- `core.coordinator.membership.Membership.register`: a later start replaces an earlier one
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.core import CoordinatorKit, sent
from tests.kit.simulated_hosts import TERM_S, SimulatedHosts

from paceline.messages import Abort, HostLost, Welcome
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import last_starts, next_start

WANTED = ("worker-0", "worker-1")


def running(hosts: tuple[str, ...] = ("a", "b")) -> SimulatedHosts:
    """Two workers, one on each of the first two hosts. Every start of a process is checked by `SimulatedHosts`."""
    sim = SimulatedHosts(hosts, WANTED)
    sim.run(3.0)
    assert len(sim.running()) == 2
    return sim


def name_on(sim: SimulatedHosts, host: str) -> str:
    (name,) = [name for (name, _), where in sim.running().items() if where == host]
    return name


def until_started_again(sim: SimulatedHosts, name: str, limit_s: float = 60.0) -> float:
    """Seconds until the name is started once more."""
    began, number = sim.now, sim.starts[name]
    while sim.starts[name] == number:
        sim.run(0.2)
        assert sim.now < began + limit_s, f"{name} is not started again"
    return sim.now - began


def test_a_number_of_a_start_is_given_once_even_to_another_launcher(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert [next_start(run, "worker-0") for _ in range(2)] == [1, 2]
    assert next_start(RunDir(tmp_path), "worker-0") == 3
    assert last_starts(run) == {"worker-0": 3}


def test_a_name_is_started_again_at_once_when_its_end_is_reported() -> None:
    sim = running()
    name = name_on(sim, "a")
    agent = sim.agents["a"]
    assert agent is not None
    agent.processes[name].ends_at = sim.now
    assert until_started_again(sim, name) < 1.5


def test_a_name_on_a_host_that_is_cut_off_is_started_elsewhere_when_the_coordinator_has_lost_it() -> None:
    sim = running()
    name = name_on(sim, "a")
    sim.cut("a")
    assert 4.0 < until_started_again(sim, name) < 8.0
    assert (name, 1) in sim.lost


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
def test_roles_that_reach_the_coordinator_live_once_although_their_agent_is_cut_off(up: bool, down: bool) -> None:
    sim = running()
    name = name_on(sim, "a")
    sim.cut("a", up=up, down=down, roles=False)
    waited_s = until_started_again(sim, name)
    assert waited_s > TERM_S
    assert sim.agents["a"] is None, "the agent has ended, and its roles with it"
    assert sim.lost <= {(name, 1)}


def test_an_agent_that_is_heard_again_before_its_term_keeps_its_roles() -> None:
    sim = running()
    before = sim.running()
    sim.cut("a", roles=False)
    sim.run(TERM_S - 5.0)
    sim.heal("a")
    sim.run(20.0)
    assert sim.running() == before
    sim.check_agreement()


def test_a_host_that_returns_ends_the_starts_that_do_not_count_and_takes_new_ones() -> None:
    sim = running(("a",))  # nobody else can take the roles
    assert set(sim.running()) == {("worker-0", 1), ("worker-1", 1)}
    sim.cut("a")
    sim.run(12.0)
    sim.heal("a")
    sim.run(4.0)
    assert set(sim.running()) == {("worker-0", 2), ("worker-1", 2)}
    sim.check_agreement()


def test_an_agent_that_dies_and_is_started_again_at_once_takes_part_again() -> None:
    sim = running()
    sim.kill_agent("a")
    sim.start_agent("a")
    sim.run(12.0)
    sim.check_agreement()


@pytest.mark.parametrize("role", ["server", "worker"])
def test_the_coordinator_ends_an_earlier_start_that_returns_and_keeps_the_later_one(role: str) -> None:
    """A host is cut off, its role is started elsewhere, and then the cut ends."""
    job = CoordinatorKit().start()
    later, earlier = f"{role}-9/2", f"{role}-9/1"
    assert sent(job.say(later, job.registration(role, later, name=f"{role}-9", start=2)), Welcome)
    effects = job.say(earlier, job.registration(role, earlier, name=f"{role}-9", start=1))
    assert [abort.kind for abort in sent(effects, Abort, earlier)] == ["lost"]
    assert later in job.core.tables.members.members
    assert earlier not in job.core.tables.members.members


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_later_start_replaces_an_earlier_one_whose_end_nobody_has_reported(role: str) -> None:
    """The earlier start has returned after a cut, and its agent has just killed it: it does not count any more."""
    job = CoordinatorKit().start()
    later, earlier = f"{role}-9/2", f"{role}-9/1"
    job.say(earlier, job.registration(role, earlier, name=f"{role}-9", start=1))
    assert sent(job.say(later, job.registration(role, later, name=f"{role}-9", start=2)), Welcome, later)
    assert [m.node for m in job.core.tables.members.named(f"{role}-9")] == [later]
    assert earlier not in job.core.tables.members.members


def test_an_earlier_start_is_ended_even_after_the_later_one_was_lost() -> None:
    job = CoordinatorKit().start()
    job.say("server-9/2", job.registration("server", "server-9/2", name="server-9", start=2))
    job.say("engine", HostLost(job.req(), "here", "its agent is gone"))
    effects = job.say("server-9/1", job.registration("server", "server-9/1", name="server-9", start=1))
    assert sent(effects, Abort, "server-9/1")
