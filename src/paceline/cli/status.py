"""``paceline status``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.messages.status import PlacementStatus, RunSummary, Status
    from paceline.runtime.rundir import RunDir

EXIT_FAILED, EXIT_DEAD = 1, 3


@click.command("status")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def command(run: Path | None, as_json: bool) -> None:
    """Show what RUN (by default runs/latest) is doing, or how it ended.

    Exit codes: 0 it runs or is done, 1 it failed, 2 usage, 3 it is not done and no longer runs.
    """
    from paceline.runtime.rundir import RunDir

    where = RunDir.named(run)
    where.token()
    if not where.launched:
        if (end := where.end()) is not None:
            sys.exit(_show_end(where, end, as_json=as_json))
        if where.done:
            sys.exit(_show_summary(where, as_json=as_json))
    sys.exit(_show_status(where, as_json=as_json))


def _show_end(where: RunDir, end: Mapping[str, Any], *, as_json: bool) -> int:
    import json

    from paceline.engines.runs import FAILED, end_state
    from paceline.engines.standing import standing

    if (state := end_state(end)) == "unfinished":
        end = {**end, **standing(where)}  # nobody has written where the run stands
    earlier = where.summary_file.name if where.summary_file.exists() else ""
    click.echo(json.dumps(end, indent=2) if as_json else _ended(where.path, end, earlier))
    return EXIT_FAILED if state == FAILED else EXIT_DEAD


def _show_summary(where: RunDir, *, as_json: bool) -> int:
    import json

    import msgspec

    from paceline.messages.status import RunSummary

    text = where.summary_file.read_text()
    if as_json:
        click.echo(json.dumps(json.loads(text), indent=2))
        return 0
    summary = msgspec.json.decode(text, type=RunSummary)
    click.echo(f"{where.path}: done after {summary.steps} steps")
    for line in _recovered(summary, summary.generations):
        click.echo(line)
    return 0


def _show_status(where: RunDir, *, as_json: bool) -> int:
    """Ask the coordinator, and show its answer."""
    import json

    import msgspec

    from paceline.coordinator.status import describe
    from paceline.engines.standing import standing
    from paceline.errors import DeadlineError
    from paceline.runtime.observing import observing

    path = where.path
    if where.coordinator() is None:
        if where.launched:
            return _say(where, "running", "no coordinator has announced itself", as_json=as_json)
        return _say(where, "not started", "no coordinator has run there", as_json=as_json)
    try:
        with observing(where) as observer:
            status = observer.status(timeout_s=where.answer_s)
    except DeadlineError:
        if where.launched:
            return _say(where, "running", f"its coordinator does not answer; see {where.logs}", as_json=as_json)
        end = {"state": "unfinished", "reason": "the launcher was killed"} | standing(where)
        click.echo(json.dumps(end, indent=2) if as_json else _ended(path, end))
        return EXIT_DEAD
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(status), indent=2))
    else:
        click.echo(f"{path}: {status.state}")
        if status.headline:
            click.echo(status.headline)
        click.echo(describe(status))
        recovered = _recovered(status, status.generation)
        for line in (
            *status.plan,
            *_processes(status),
            *_samplers(status),
            *_copies(status),
            *_hosts(status),
            *recovered,
            _checkpoint(status),
        ):
            click.echo(line)
    return 0 if status.failure is None else EXIT_FAILED


def _say(where: RunDir, state: str, detail: str, *, as_json: bool) -> int:
    import json

    click.echo(json.dumps({"state": state, "reason": detail}) if as_json else f"{where.path}: {state}: {detail}")
    return 0 if state == "running" else EXIT_DEAD


def _ended(path: Path, end: Mapping[str, Any], earlier: str = "") -> str:
    """Says in words how a run ended that was not completed, and what to do, in lines of their own.

    `earlier` names the summary of an earlier completion.
    """
    import time

    step, end_step, checkpoint = end.get("step"), end.get("end_step"), end.get("checkpoint")
    at = "" if step is None else f" at step {step} of {end_step}" if end_step else f" at step {step}"
    ago = f", {max(0.0, time.time() - end['at']):,.0f} s ago" if end.get("state") == "ended" else ""
    kept = f"; checkpoint {checkpoint['folder']}, step {checkpoint['step']}" if checkpoint else ""
    kept = kept or "; no checkpoint" * ("checkpoint" in end)  # absent if the checkpoints cannot be listed
    before = f"{earlier} is from when the run was done before.\n" if earlier else ""
    advice = end.get("advice") or f"`paceline run --resume {path}` continues the run"
    return f"{path}: {end['reason']}{at}{ago}{kept}.\n{before}{advice}"


def _processes(status: Status) -> Iterator[str]:
    """Lines that name the processes of the coordinator and the workers, for those who look at one or end it."""
    yield f"coordinator (pid {status.pid})"
    for process in sorted(status.processes, key=lambda process: process.name):
        if process.role == "worker":
            speed = next((s for s in status.speeds if s.name == process.name), None)
            does = "" if speed is None else f": {speed.seconds * 1e3:.3g} ms a slot, {speed.share:.0%} of the slots"
            waits = status.data_wait.workers.get(process.name, 0.0)
            does += f", {waits:.0%} of its time waiting for data" * (waits >= 0.05)
            yield f"{process.name} (pid {process.pid}){does}"


_REDUCERS = {"servers": "servers", "collective": "the workers, which sum as a group"}


def _samplers(status: Status) -> Iterator[str]:
    """A line for each sampler."""
    from paceline.coordinator.data_report import in_words

    pids = {process.name: process.pid for process in status.processes}
    for sampler in status.samplers:
        yield f"{sampler.name} (pid {pids.get(sampler.name, 0)}): {in_words(sampler)}"
    if status.wanted_samplers is not None and len(status.samplers) != status.wanted_samplers:
        yield f"{counted(status.wanted_samplers, 'sampler')} wanted"


def _copies(status: Status) -> Iterator[str]:
    """Lines that say how many blocks each server holds, and whether every block has its copies."""
    placement, wanted = status.placement, status.wanted_servers
    if status.reducer:
        yield f"blocks are on {_REDUCERS[status.reducer]}"
    pids = {process.name: process.pid for process in status.processes}
    for name in sorted({*status.servers, *placement.servers}):
        primary, backup = placement.servers.get(name, (0, 0))
        holds = f"primary of {counted(primary, 'block')}" + f", backup of {backup}" * bool(status.replicas or backup)
        process = f"{name} (pid {pids[name]})" if name in pids else f"{name} (not connected)"
        yield f"{process}: {holds}" + ", being emptied" * (name in status.draining)
    if wanted and len(status.servers) != wanted:
        yield f"{counted(wanted, 'server')} {'is' if wanted == 1 else 'are'} wanted"
    if status.replicas or placement.building:
        yield copies_in_words(placement, status.replicas)
    if status.changes:
        change = status.changes[-1]
        yield f"{change.age_s:.0f} s ago: {change.why}"


def _hosts(status: Status) -> Iterator[str]:
    """Lines that say which roles each host carries, for a run with several hosts, and who cannot reach whom."""
    names = sorted({process.host for process in status.processes if process.host} | set(status.draining_hosts))
    if len(names) > 1 or status.draining_hosts:
        for host in names:
            here = sorted(process.name for process in status.processes if process.host == host)
            state = " (empty)" if host in status.drained_hosts else " (being emptied)"
            yield f"host {host}: {', '.join(here) or 'no roles'}{state if host in status.draining_hosts else ''}"
    if status.slowest is not None and len(names) > 1:
        late = next((p.host for p in status.processes if p.name == status.slowest.worker), "")
        if late:
            yield f"the oldest lease is held on host {late}, by {status.slowest.worker}"
    yield from status.cuts
    if status.unequal:
        yield status.unequal


def copies_in_words(placement: PlacementStatus, replicas: int) -> str:
    """A line that says how many copies each block has, how many are missing, and how many are being made."""
    text = f"{counted(replicas, 'copy', 'copies')} of each of {counted(placement.blocks, 'block')}"
    if placement.short:
        text += f"; {counted(placement.short, 'block')} with fewer"
    elif replicas:
        text += ", all in sync"
    if placement.building:
        text += f"; {placement.building} being made"
    return text


def counted(number: int, one: str, more: str = "") -> str:
    """A number with its noun in the singular or plural, such as "2 blocks"."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def _checkpoint(status: Status) -> str:
    """A line about the checkpoint from which a rewind or a resumed run would begin."""
    checkpoint = status.checkpoint
    return f"checkpoint: {checkpoint.folder}, step {checkpoint.step}" if checkpoint else "no checkpoint yet"


def _recovered(run: Status | RunSummary, generations: int) -> Iterator[str]:
    """Lines about the losses from which the run has recovered."""
    if lost := run.lost_workers:
        yield f"{counted(lost, 'worker')} {'was' if lost == 1 else 'were'} lost"
    if generations > 1:
        yield f"the coordinator was started {generations} times"
    if run.failovers:
        times = counted(run.failovers, "time")
        yield f"a backup took over {times}; the longest pause of commits was {run.failover_s:.1f} s"
    if run.rewinds:
        times, steps = counted(run.rewinds, "time"), counted(run.recomputed_steps, "step")
        yield f"rewound {times}: {steps} computed again"
