"""``paceline dev``: tools for developers of Paceline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import chaos

if TYPE_CHECKING:
    from paceline.testing.hosts.outcome import Outcome


@click.group(name="dev")
def command() -> None:
    """Tools for developers."""


command.add_command(chaos.command)


@command.command(name="sim")
@click.option("--seeds", default=1000, show_default=True, help="How many schedules to play.")
@click.option("--start", default=0, show_default=True, help="The first seed.")
@click.option("--mode", default=None, help="bsp, ssp:K, asp, allreduce or both (it moves). [default: the seed says]")
@click.option("--workers", type=int, default=None, help="Workers at the start. [default: the seed says]")
@click.option("--servers", type=int, default=None, help="Parameter servers. [default: the seed says]")
@click.option("--replicas", type=int, default=None, help="Backups of each block. [default: the seed says]")
@click.option("--hosts", type=int, default=None, help="Hosts of the job, 1 for none. [default: the seed says]")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Write the figures here.")
@click.option("--measure", is_flag=True, help="Measure the cost of a slot: 10 to 10,000 workers, or 10 a host.")
def sim(
    seeds: int,
    start: int,
    mode: str | None,
    workers: int | None,
    servers: int | None,
    replicas: int | None,
    hosts: int | None,
    json_file: Path | None,
    measure: bool,
) -> None:
    """Simulate runs with faults, one for each seed, and check every rule of the protocol after each event."""
    if replicas is not None and servers is not None and servers <= replicas:
        raise click.UsageError(f"--replicas {replicas} needs at least {replicas + 1} servers: --servers is {servers}")
    chosen = range(start, start + seeds)
    result = _measure(mode, hosts) if measure else _play(chosen, mode, workers, servers, replicas, hosts)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if result.get("violations"):
        sys.exit(1)


@command.command(name="hosts")
@click.option("--kills", default=0, show_default=True, help="How many times a whole host is killed.")
@click.option("--cuts", default=0, show_default=True, help="How many times a host is cut off.")
@click.option("--leaves", default=0, show_default=True, help="How many times a host is emptied and returns.")
@click.option("--agent-cuts", default=0, show_default=True, help="How many agents are cut off from their supervisor.")
@click.option(
    "--role-cuts", default=0, show_default=True, help="How many times all but the agent of a host is cut off."
)
@click.option("--adoptions", default=0, show_default=True, help="How many times the run is killed and adopted.")
@click.option("--joins", default=0, show_default=True, help="How many times a further host joins.")
@click.option("--drains", default=0, show_default=True, help="How many times a host is drained.")
@click.option("--cut-s", default=20.0, show_default=True, help="How many seconds a cut lasts.")
@click.option("--mode", default="bsp", show_default=True, help="bsp, ssp:K, asp or allreduce.")
@click.option("--seed", default=0, show_default=True, help="Chooses the order of the faults, and their hosts.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("chaos/hosts"), show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Write the figures here.")
def hosts(folder: Path, json_file: Path | None, **given: Any) -> None:
    """Lose, cut off, empty and add hosts of a run on three hosts, which are network namespaces of this machine."""
    from paceline.testing.hosts.campaign import HostCampaign, play

    _report(play(HostCampaign(**given), folder.absolute(), click.echo), json_file)


@command.command(name="engines")
@click.option("--engine", type=click.Choice(["ray", "spark"]), required=True, help="Who carries the run.")
@click.option("--kills", default=0, show_default=True, help="How many times a node is killed.")
@click.option("--adds", default=0, show_default=True, help="How many times a node is added.")
@click.option("--mode", default="bsp", show_default=True, help="bsp, ssp:K or asp.")
@click.option("--seed", default=0, show_default=True, help="Chooses the order of the faults, and their nodes.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("chaos/engines"), show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Write the figures here.")
def engines(engine: str, kills: int, adds: int, mode: str, seed: int, folder: Path, json_file: Path | None) -> None:
    """Kill and add nodes of a cluster of three nodes on this machine, which carries a run."""
    from paceline.testing.engines.campaign import EngineCampaign, play
    from paceline.testing.engines.made import make_cluster

    campaign = EngineCampaign(kills=kills, adds=adds, mode=mode, seed=seed)
    _report(play(campaign, make_cluster(engine), folder.absolute(), click.echo), json_file)


def _report(outcome: Outcome, json_file: Path | None) -> None:
    """Show and write the figures of a campaign; the exit code says whether all was well."""
    text = json.dumps(outcome.as_dict(), indent=2)
    click.echo(text)
    if json_file is not None:
        json_file.write_text(text + "\n")
    if outcome.problems:
        sys.exit(1)


def _play(
    seeds: range, mode: str | None, workers: int | None, servers: int | None, replicas: int | None, hosts: int | None
) -> dict[str, object]:
    from paceline.sim.run import Tally, simulate
    from paceline.sim.scenario import make_scenario
    from paceline.sim.world import Violation

    tally = Tally()
    with click.progressbar(seeds, label="schedules", file=sys.stderr, hidden=not sys.stderr.isatty()) as progress:
        for seed in progress:
            try:
                scenario = make_scenario(
                    seed, mode=mode, workers=workers, servers=servers, replicas=replicas, hosts=hosts
                )
                tally.add(simulate(scenario))
            except Violation as violation:
                tally.fail(violation)
                click.echo(f"\n{violation}\n", err=True)
    click.echo(str(tally))
    return tally.as_dict()


def _measure(mode: str | None, hosts: int | None) -> dict[str, object]:
    from paceline.sim.measure import ROLES_PER_HOST, SIZES, measure

    costs = []
    for one in (mode,) if mode else ("bsp", "asp"):
        for size in SIZES if hosts is None else (hosts * ROLES_PER_HOST,):
            cost = measure(size, one, hosts=hosts or 1)
            click.echo(str(cost))
            costs.append(cost.as_dict())
    return {"costs": costs}
