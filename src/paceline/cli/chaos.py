"""``paceline dev chaos``."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.testing.chaos.plan import CampaignSpec

ALL = "all"
_AS_GIVEN = (
    "script",
    "arguments",
    "seed",
    "workers",
    "servers",
    "replicas",
    "mode",
    "slots",
    "lane",
    "checkpoint_every",
    "per_round",
)


class _Screen:
    """Prints each note as a line; on a terminal, the last line shows the progress."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._shown = ""

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def progress(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(text, "bold", no_wrap=True, overflow="ellipsis"))
        elif text != self._shown:
            self._shown = text
            self._console.print(Text(text), soft_wrap=True)


@click.command(
    "chaos",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False, "max_content_width": 100},
)
@click.option("--kill", multiple=True, metavar="ROLE=N", help="Send SIGKILL to N workers, servers or coordinators.")
@click.option(
    "--stop", multiple=True, metavar="ROLE=N", help="Stop a process for longer than --lease, then continue it."
)
@click.option(
    "--term", multiple=True, metavar="worker=N", help="Send SIGTERM to a worker: it leaves, another one joins."
)
@click.option("--join", multiple=True, metavar="worker=N", help="Add a worker with `paceline join`.")
@click.option("--set", multiple=True, metavar="mode=N", help="Change the mode with `paceline set`.")
@click.option("--add", multiple=True, metavar="server=N", help="Add a server, to which blocks move.")
@click.option(
    "--drain", multiple=True, metavar="server=N", help="Remove a server after its blocks have moved to others."
)
@click.option("--cut", multiple=True, metavar="KIND=N", help="Cut the network (as root): symmetric, one-way, flapping.")
@click.option("--kill-saving", multiple=True, metavar="ROLE=N", help="SIGKILL while a checkpoint is written.")
@click.option("--kill-all", type=click.IntRange(0), default=0, metavar="N", help="Kill everything, then resume.")
@click.option("--kill-launcher", type=click.IntRange(0), default=0, metavar="N", help="Kill the launcher, then resume.")
@click.option("--storm", multiple=True, metavar="ROLE=N", help="SIGKILL, one a second, without waiting for recovery.")
@click.option("--strangers", type=click.IntRange(0), default=0, metavar="N", help="100 strangers fill the ports.")
@click.option("--drop", type=float, default=0.0, metavar="P", help="Lose this share of the workers' messages.")
@click.option(
    "--duplicate", type=float, default=0.0, metavar="P", help="Send this share of the workers' messages twice."
)
@click.option(
    "--delay", type=float, default=0.0, metavar="P", help="Delay this share of the workers' messages by 50 ms."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the plan of faults.")
@click.option("-w", "--workers", type=int, default=3, show_default=True, help="Worker processes.")
@click.option("-s", "--servers", type=int, default=2, show_default=True, help="Parameter servers; 0 with allreduce.")
@click.option("--replicas", type=int, default=0, show_default=True, help="Copies of each block on other servers.")
@click.option("--mode", default="bsp", show_default=True, metavar="bsp|ssp:K|asp|allreduce")
@click.option("--slots", type=int, help="Micro-batches in a step.")
@click.option("--lane", default="auto", show_default=True, metavar="auto|tcp", help="As PACELINE_LANE.")
@click.option("--shape", multiple=True, metavar="WxS", help="Workers and servers of resumed runs, in turn.")
@click.option(
    "--lease", type=float, default=2.0, show_default=True, metavar="S", help="Silence that makes a role lost."
)
@click.option("--checkpoint-every", default="20", show_default=True, metavar="N|Ss", help="As in `paceline run`.")
@click.option("--per-round", type=int, default=0, metavar="N", help="End and compare after N faults. [default: all]")
@click.option("--limit", multiple=True, metavar="ROLE=S", help="Fail if the p95 of kill to next commit exceeds this.")
@click.option("--plain-args", default="", metavar="TEXT", help="More arguments for the run without faults.")
@click.option("--plain-shape", metavar="WxS", help="Workers and servers of the run without faults.")
@click.option(
    "--deadline", type=float, default=60.0, show_default=True, metavar="S", help="Limit of every single wait."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Where runs go. [default: runs/chaos-0001 …]")
@click.option("--campaign", metavar=f"NAME|{ALL}", help="Run a long campaign by its name, or all of them.")
@click.option("--fraction", type=float, default=1.0, show_default=True, help="Share of the faults of a named campaign.")
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(campaign: str | None, folder: Path | None, json_file: Path | None, fraction: float, **given: Any) -> None:
    """Run SCRIPT under a seeded plan of faults, and prove that nothing was lost.

    Except in a storm, each fault is injected after the run has recovered from the fault before. Exit codes: 0 nothing
    was lost, 1 something was lost or a check failed.
    """
    if campaign is not None:
        if given["script"] is not None:
            raise UsageError("a --campaign has its own script: leave SCRIPT out")
        sys.exit(_named(campaign, folder, json_file, fraction, given["seed"]))
    if given["script"] is None:
        raise UsageError("give the SCRIPT to run, or --campaign NAME")
    result = _play(folder, **given)
    _write(json_file, result)
    _report("chaos", result)
    sys.exit(0 if result["ok"] else 1)


def _named(campaign: str, folder: Path | None, json_file: Path | None, fraction: float, seed: int) -> int:
    from paceline.testing.chaos.campaigns import CAMPAIGNS, words_of
    from paceline.testing.chaos.figures import table

    if campaign not in (*CAMPAIGNS, ALL):
        raise UsageError(f"campaign {campaign!r} is not known; use one of {', '.join(CAMPAIGNS)}, or {ALL}")
    folder = folder or Path("chaos")
    names = list(CAMPAIGNS) if campaign == ALL else [campaign]
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        words = words_of(name)
        click.echo(f"{name}: paceline dev chaos {shlex.join(words)}")
        given = dict(command.make_context("chaos", words).params)
        for key in ("campaign", "folder", "json_file", "fraction"):
            del given[key]
        shutil.rmtree(folder / name, ignore_errors=True)
        results[name] = _play(folder / name, **{**given, "seed": seed}, fraction=fraction)
        _write(folder / f"{name}.json", results[name])
        _report(name, results[name])
    _write(json_file, results[campaign] if campaign != ALL else results)
    for line in table({name: result for name, result in results.items() if "skipped" not in result}):
        click.echo(line)
    return 0 if all(result["ok"] for result in results.values()) else 1


def _play(folder: Path | None, *, fraction: float = 1.0, **given: Any) -> dict[str, Any]:
    from paceline.engines.sigterm import terminable
    from paceline.engines.text_screen import make_console
    from paceline.runtime.rundir import next_run
    from paceline.testing.chaos.campaign import Campaign

    spec = _spec(given, fraction)  # raises before a directory is made
    if spec.cuts:
        from paceline.testing.network import problem

        if (why := problem()) is not None:
            rest = {fault: number for fault, number in spec.faults.items() if fault.kind != "cut"}
            if not rest:
                return {"ok": True, "skipped": f"nothing was cut: {why}"}
            click.echo(f"nothing is cut: {why}", err=True)
            spec = replace(spec, faults=rest)
    spec = replace(spec, dir=folder if folder is not None else next_run(Path("runs"), "chaos"))
    console = make_console()
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminable())
        live = None
        if console.is_terminal:
            live = Live(Text("starting"), console=console, refresh_per_second=8, transient=True)
            stack.enter_context(live)
        return Campaign(spec, _Screen(console, live), shlex.join(sys.argv)).run().as_dict()


def _spec(given: dict[str, Any], fraction: float) -> CampaignSpec:
    from paceline.testing.chaos.plan import (
        CampaignSpec,
        Fault,
        Kind,
        Messages,
        parse_faults,
        parse_limits,
        parse_shape,
    )

    faults: Counter[Fault] = Counter()
    for kind in Kind:
        if kind in (Kind.ALL, Kind.LAUNCHER, Kind.STRANGERS):
            continue
        faults += parse_faults(kind, given[kind.replace("-", "_")])
    faults[Fault(Kind.ALL, "run")] = given["kill_all"]
    faults[Fault(Kind.LAUNCHER, "launcher")] = given["kill_launcher"]
    faults[Fault(Kind.STRANGERS, "run")] = given["strangers"]
    return CampaignSpec(
        **{name: given[name] for name in _AS_GIVEN},
        plain_arguments=tuple(shlex.split(given["plain_args"])),
        plain_shape=parse_shape(given["plain_shape"]) if given["plain_shape"] else None,
        faults={fault: max(1, round(number * fraction)) for fault, number in faults.items() if number},
        messages=Messages(given["drop"], given["duplicate"], given["delay"]),
        lease_s=given["lease"],
        shapes=tuple(map(parse_shape, given["shape"])),
        limits=parse_limits(given["limit"]),
        deadline_s=given["deadline"],
        dir=Path("runs"),
    )


def _write(file: Path | None, result: dict[str, Any]) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=2) + "\n")


def _report(name: str, result: dict[str, Any]) -> None:
    from paceline.cli.status import counted

    if "skipped" in result:
        click.echo(f"{name}: skipped, {result['skipped']}")
        return
    fired = ", ".join(f"{number} × {kind}" for kind, number in result["fired"].items())
    click.echo(
        f"{name}: {fired or 'nothing'} in {result['seconds']:.0f} s and {counted(len(result['rounds']), 'round')}"
    )
    for fault, s in result["recovery_s"].items():
        click.echo(
            f"  {fault}: next commit after p50 {s['p50']:.2f} s, p95 {s['p95']:.2f} s, max {s['max']:.2f} s, n {s['n']}"
        )
    for fault, s in result["pause_s"].items():
        click.echo(f"  {fault}: no commit for p50 {s['p50']:.2f} s, p95 {s['p95']:.2f} s, max {s['max']:.2f} s")
    for fault, s in result["restored_s"].items():
        if fault.startswith("cut"):
            click.echo(f"  {fault}: restored after p50 {s['p50']:.2f} s, p95 {s['p95']:.2f} s, max {s['max']:.2f} s")
    if grown := result["grown_mb"]:
        click.echo(f"  strangers: the run took at most {grown['max']:.1f} MB more, p50 {grown['p50']:.1f} MB")
    for failure in result["failures"]:
        click.echo(f"  FAILED: {failure}", err=True)
    if result["ok"]:
        click.echo("  nothing was lost")
