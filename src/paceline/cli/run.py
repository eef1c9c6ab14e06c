"""``paceline run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from paceline.cli.host_options import host_options
from paceline.cli.log_options import log_options


@click.command(
    "run",
    context_settings={
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
        "max_content_width": 100,
    },
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module name, as for `python -m`.")
@click.option("-w", "--workers", metavar="N|auto", help="Worker processes.  [default: 2]")
@click.option("-s", "--servers", metavar="N|per-host", help="Parameter servers.  [default: 1]")
@click.option("--samplers", metavar="N|per-host", help="Processes that prepare data.  [default: 0]")
@click.option("--replicas", type=int, metavar="R", help="Copies of each block.  [default: 0]")
@click.option(
    "--mode",
    metavar="bsp|ssp:K|asp|allreduce",
    help="Lock-step, K steps stale, asynchronous, or without servers; bsp@500,asp: bsp until step 500, then asp.",
)
@click.option("--insecure-collective", is_flag=True, default=None, help="Allow allreduce: gradients go unprotected.")
@click.option("--ordered", is_flag=True, default=None, help="allreduce with the digest of bsp; slower.")
@click.option(
    "--slots",
    metavar="N|auto",
    help="Micro-batches in a step; auto: by speed.  [default: the script's, else one per worker]",
)
@click.option("--seed", type=int, help="Seed of data order, weights and dropout.")
@click.option("--threads", type=int, help="Threads of each worker; they change the result.  [default: 1]")
@click.option(
    "--checkpoint-every", metavar="500|30s|0", help="Steps or seconds between checkpoints; 0 for none.  [default: 30s]"
)
@click.option("--keep", type=int, metavar="K", help="Keep the newest K checkpoints.  [default: 3]")
@click.option("--checkpoints", metavar="URL", help="A directory or fsspec URL for checkpoints.")
@click.option("--files-limit", type=int, metavar="MIB", help="Most MiB of your files.  [default: 256]")
@click.option(
    "--max-restarts",
    type=int,
    metavar="N",
    help="Quick deaths in a row without a commit before a role is given up.  [default: 5]",
)
@click.option("--max-steps", type=int, metavar="N", help="End the job after N steps.")
@click.option("--max-epochs", type=int, metavar="N", help="End the job after N epochs.")
@click.option("--max-samples", type=int, metavar="N", help="End the job after N samples.")
@click.option("--max-time", metavar="2h|30m|45s", help="End the job when it has run for so long.")
@click.option("--target", metavar="METRIC:VALUE", help="End the job at a target; also 'loss<0.1'.")
@click.option("--patience", type=int, metavar="N", help="End the job after N validations without gain.")
@click.option("--min-delta", type=float, metavar="X", help="Gain is more than this.  [default: 0]")
@click.option("--plateau", metavar="N[:FACTOR]", help="Lower the rate after N of them.")
@click.option("--best", metavar="METRIC[:max|:min]", help="Keep the best versions, too.")
@click.option("--keep-best", type=int, metavar="K", help="Of so many best versions.  [default: 1]")
@click.option("--on-nan", metavar="warn|stop", help="If a number is nan or inf.  [default: warn]")
@click.option("--tensorboard", is_flag=True, default=None, help="Write scalars for TensorBoard to RUN/tb.")
@click.option("--metrics-port", type=int, metavar="PORT", help="Metrics for Prometheus; 0: any port.")
@click.option("--resume", metavar="RUN|URL", help="Continue a run from its last checkpoint.")
@click.option("--adopt", type=click.Path(path_type=Path), metavar="RUN", help="Replace the lost launcher of RUN.")
@click.option("--allow-changes", is_flag=True, help="Resume although the code has changed.")
@click.option("--dir", type=click.Path(path_type=Path), help="A new run directory.  [default: runs/NAME-0001 …]")
@click.option("--summary", type=click.Path(path_type=Path), help="Also write the summary (JSON) here.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write what every process did, for Perfetto.")
@host_options
@log_options
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(script: Path | None, arguments: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT with ARGUMENTS on workers and servers of this machine, or of several hosts.

    Everything after SCRIPT is passed to the script. With --resume, script, arguments and options are those of the run
    unless you give others. A process that dies is restarted. Exit codes: 0 done, 1 the script failed, 2 usage,
    3 a role that the run needs was lost, 8 another run took over, 130 Ctrl-C, 141 the output was closed, 143 SIGTERM.
    """
    from paceline.cli.screen import make_screen
    from paceline.engines.run_request import request_run
    from paceline.telemetry import logs

    request = request_run(script, arguments, options)
    logs.set_up(request.plan.log_level, request.plan.log_format, process="launcher")
    with make_screen() as screen:
        outcome = request.supervisor(screen).run()
    sys.exit(outcome.code)
