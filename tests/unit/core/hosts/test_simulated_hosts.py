"""Agents and a supervisor under random cuts, deaths and adoptions: rule 13 holds, and in the end both sides agree."""

from __future__ import annotations

import pytest
from tests.kit.simulated_hosts import SimulatedHosts

HOSTS = ("a", "b", "c")
WANTED = ("server-0", "server-1", "worker-0", "worker-1", "worker-2")


def disturb(sim: SimulatedHosts) -> None:
    """Inject one random fault, or end one."""
    name = sim.rng.choice(HOSTS)
    agent = sim.agents[name]
    match sim.rng.choice(("cut", "agent link", "one way", "heal", "kill", "exit", "pause", "supervisor", "roles")):
        case "cut":
            sim.cut(name)
        case "agent link":
            sim.cut(name, roles=False)
        case "one way":
            up = sim.rng.random() < 0.5
            sim.cut(name, up=up, down=not up, roles=sim.rng.random() < 0.5)
        case "roles":
            sim.cut(name, up=False, down=False)
        case "heal":
            sim.heal(name)
        case "kill":
            sim.kill_agent(name)
        case "exit" if agent is not None and agent.processes:
            agent.processes[sim.rng.choice(sorted(agent.processes))].ends_at = sim.now
        case "pause" if agent is not None:
            agent.paused_until = sim.now + sim.rng.uniform(0.0, 4.0)
        case "supervisor" if sim.supervisor is not None and not sim.supervisor.adopting:
            sim.kill_supervisor()
    if sim.supervisor is None and sim.rng.random() < 0.5:
        sim.adopt()
    for name in HOSTS:
        if sim.agents[name] is None and sim.rng.random() < 0.5:
            sim.start_agent(name)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_no_name_runs_twice_and_after_the_faults_both_sides_agree(first: int) -> None:
    for seed in range(first, first + 8):
        sim = SimulatedHosts(HOSTS, WANTED, seed)
        sim.run(2.0)
        sim.check_agreement()
        for _ in range(25):
            disturb(sim)
            sim.run(sim.rng.choice((0.2, 1.0, 3.0, 8.0, 20.0)))
            if sim.rng.random() < 0.5:
                for name in HOSTS:
                    sim.heal(name)
        if sim.supervisor is None:
            sim.adopt()
        for name in HOSTS:
            sim.heal(name)
        sim.run(45.0)
        for name in HOSTS:
            if sim.agents[name] is None:
                sim.start_agent(name)
        sim.run(15.0)
        sim.check_agreement()
