"""Rule 15, adoption: a supervisor that returns adopts the roles that live, and the coordinator goes on from its log.

When the coordinator's host is cut off, the job waits. Every start uses the files of the run's start, by digest. A drain
is a durable fact that names the host.

Upheld by:
- `core.hosts.host_table.HostTable.adopt`: only the last start of a name is adopted
- `core.hosts.host_table.HostTable.welcome`: the agent learns which of its roles count
- `core.hosts.agent.AgentCore.disconnected`: an agent keeps its roles while its supervisor may return
- `engines.decisions.Decisions.first`: roles that run are not started again
- `engines.file_delivery.FileDelivery`: the files of the run's start
- `core.effects.DrainFact`: the durable fact of a drain
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.simulated_hosts import TERM_S, SimulatedHosts

from paceline.engines.decisions import Decisions
from paceline.engines.file_delivery import FileDelivery
from paceline.engines.plan import RunPlan
from paceline.engines.resume_hint import ResumeHint
from paceline.runtime.rundir import RunDir

HOSTS = ("a", "b", "c")
WANTED = ("server-0", "server-1", "worker-0", "worker-1")


def running() -> SimulatedHosts:
    sim = SimulatedHosts(HOSTS, WANTED)
    sim.run(3.0)
    assert len(sim.running()) == len(WANTED)
    return sim


@pytest.mark.parametrize("away_s", [0.2, 5.0, TERM_S - 4.0])
def test_a_supervisor_that_returns_within_the_term_finds_every_role_as_it_was(away_s: float) -> None:
    sim = running()
    before = sim.running()
    sim.kill_supervisor()
    sim.run(away_s)
    sim.adopt()
    sim.run(5.0)
    assert sim.running() == before
    sim.check_agreement()


def test_agents_whose_supervisor_does_not_return_end_their_roles() -> None:
    sim = running()
    sim.kill_supervisor()
    sim.run(TERM_S + 2.0)
    assert sim.running() == {}
    assert set(sim.agents.values()) == {None}


def test_a_role_that_ended_meanwhile_is_started_again_and_the_others_are_not() -> None:
    sim = running()
    sim.kill_supervisor()
    agent = next(agent for agent in sim.agents.values() if agent is not None and "worker-0" in agent.processes)
    agent.processes["worker-0"].ends_at = sim.now
    sim.run(3.0)
    sim.adopt()
    sim.run(4.0)
    assert set(sim.running()) == {("server-0", 1), ("server-1", 1), ("worker-0", 2), ("worker-1", 1)}


def test_what_roles_printed_while_there_was_no_supervisor_arrives() -> None:
    sim = running()
    sim.kill_supervisor()
    sim.run(10.0)
    sim.adopt()
    sim.run(5.0)
    printed = {agent.id: agent.lines for agent in sim.agents.values() if agent is not None and agent.lines > 0}
    assert printed
    sim.run(1.0)
    assert {agent: sim.seen[agent] >= lines for agent, lines in printed.items()} == dict.fromkeys(printed, True)


def test_a_host_that_is_cut_off_during_the_adoption_is_awaited_for_its_whole_term() -> None:
    sim = running()
    (host,) = {where for (name, _), where in sim.running().items() if name == "worker-0"}
    sim.cut(host, roles=False)
    sim.kill_supervisor()
    sim.run(1.0)
    sim.adopt()  # `SimulatedHosts` fails if worker-0 is started beside the one that lives
    sim.run(60.0)
    sim.heal(host)
    sim.start_agent(host)
    sim.run(5.0)
    sim.check_agreement()


def test_a_start_that_an_earlier_supervisor_had_replaced_is_not_adopted() -> None:
    sim = running()
    (host,) = {where for (name, _), where in sim.running().items() if name == "worker-0"}
    sim.cut(host)
    sim.run(12.0)
    assert {("worker-0", 1), ("worker-0", 2)} <= set(sim.running()), "the first one is lost, and runs cut off"
    sim.kill_supervisor()
    sim.heal(host)
    sim.adopt()
    sim.run(5.0)
    assert ("worker-0", 1) not in sim.running()
    sim.check_agreement()


def test_adopted_roles_keep_their_names_and_missing_ones_get_new_names() -> None:
    decisions = Decisions(3, 2, 1, 5, ResumeHint(Path("run"), "30s"), resumed=False, grace_s=30.0)
    assert list(decisions.first({"server-0": 1, "server-1": 1, "worker-1": 4})) == [
        "coordinator",
        "worker-2",
        "worker-3",
    ]
    assert decisions.workers.active == ["worker-1", "worker-2", "worker-3"]


def test_an_adopted_run_sends_the_files_of_its_start_although_they_have_changed(tmp_path: Path) -> None:
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("print(1)")
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    first = FileDelivery(RunPlan(script=script, run=run.path), run).manifest
    script.write_text("print(2)")
    adopted = FileDelivery(RunPlan(script=script, run=run.path, adopt=True), run).manifest
    assert adopted == first
    assert FileDelivery(RunPlan(script=script, run=run.path), run).manifest != first
