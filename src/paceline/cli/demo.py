"""``paceline demo``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from paceline.cli.examples import example_file
from paceline.cli.log_options import log_options


@click.command("demo")
@click.option("--epochs", type=int, default=4, show_default=True, help="Passes over the data.")
@click.option("--dir", "run_dir", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True)
@log_options
def command(epochs: int, run_dir: Path, **options: str | None) -> None:
    """Train LeNet on Fashion-MNIST with 2 workers and 2 parameter servers, in lock-step.

    Each server has a copy of the other's blocks. Replaces the run directory of an earlier demo.
    """
    from paceline.cli.screen import make_screen
    from paceline.datasets import GENERATED, fashion_mnist
    from paceline.engines.supervisor import RunPlan, Supervisor
    from paceline.errors import DatasetUnavailableError, UsageError
    from paceline.runtime.rundir import RunDir, point_latest
    from paceline.telemetry import logs

    if RunDir(run_dir).launched:
        raise UsageError(f"{run_dir} is running: end it first, or choose another --dir")
    if RunDir(run_dir).token_file.exists():
        shutil.rmtree(run_dir)
    script = example_file("fashion_mnist")
    arguments = ["--epochs", str(epochs), "--every", "234"]
    with make_screen() as screen:
        try:
            screen.note(f"data: {fashion_mnist().source}")
        except DatasetUnavailableError as error:
            screen.note(f"{error}", warning=True)
            screen.note("the demo uses generated images instead: ten classes, the same shape", warning=True)
            arguments += ["--data", GENERATED]
        shape: dict[str, Any] = {"workers": 2, "servers": 2, "replicas": 1, "slots": 2, "seed": 7}
        shape |= {name: value for name, value in options.items() if value is not None}
        plan = RunPlan(script=script, arguments=arguments, run=run_dir, **shape)
        logs.set_up(plan.log_level, plan.log_format, process="launcher")
        local = Supervisor(plan, screen)
        point_latest(run_dir)
        code = local.run().code
        if code == 0:
            screen.note(f"summary: {run_dir / 'summary.json'}")
    sys.exit(code)
