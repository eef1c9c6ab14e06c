"""``paceline run``."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(
    "run",
    context_settings={
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
        "max_content_width": 100,
    },
)
@click.option("-w", "--workers", type=int, default=2, show_default=True, help="Worker processes.")
@click.option("-s", "--servers", type=int, default=1, show_default=True, help="Parameter servers.")
@click.option("--mode", metavar="bsp|ssp:K|asp", help="Lock-step, at most K steps stale, or asynchronous.")
@click.option("--slots", type=int, help="Micro-batches in a step (else as the script says, or one a worker).")
@click.option("--seed", type=int, help="Seed of data order, weights and dropout.")
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of each worker; part of the result.")
@click.option("--dir", "run_dir", type=click.Path(path_type=Path), help="Run directory (new; else runs/NAME-0001 …).")
@click.option("--summary", type=click.Path(path_type=Path), help="Also write the summary (JSON) here.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    workers: int,
    servers: int,
    mode: str | None,
    slots: int | None,
    seed: int | None,
    threads: int,
    run_dir: Path | None,
    summary: Path | None,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT with ARGUMENTS on workers and servers of this machine.

    Options stop at the script: what follows it belongs to the script. Exit codes: 0 done, 1 the script failed, 2
    usage, 3 a role that the run needs was lost, 130 Ctrl-C.
    """
    from paceline.cli.screen import make_screen
    from paceline.engines.local import LocalRun, RunPlan
    from paceline.errors import UsageError
    from paceline.runtime.rundir import next_run, point_latest

    if not script.is_file():
        raise UsageError(f"{script} is not a file")
    plan_for = {
        "script": script, "arguments": arguments, "workers": workers, "servers": servers, "mode": mode,
        "slots": slots, "seed": seed, "threads": threads, "summary": summary,
    }  # fmt: skip
    RunPlan(run=Path("checked-before-a-directory-is-made"), **plan_for)  # type: ignore[arg-type]
    path = run_dir if run_dir is not None else next_run(Path("runs"), script.stem)
    plan = RunPlan(run=path, **plan_for)  # type: ignore[arg-type]
    with make_screen() as screen:
        local = LocalRun(plan, screen)
        if run_dir is None:
            point_latest(path)
        code = local.run()
    sys.exit(code)
