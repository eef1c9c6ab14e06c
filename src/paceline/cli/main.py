"""``paceline``: the group of commands."""

from __future__ import annotations

import os
import sys

import click

from paceline.config.system import require_linux
from paceline.errors import DeposedError, PacelineError, UsageError


class _Group(click.Group):
    """Loads the module of a command only when the command is used, so that ``--help`` is quick."""

    _commands = {  # noqa: RUF012
        "run": ("paceline.cli.run", "Run a script on workers and parameter servers."),
        "demo": ("paceline.cli.demo", "Train LeNet on Fashion-MNIST: 2 workers, 2 servers."),
        "examples": ("paceline.cli.examples", "List the example scripts, or copy them to this directory."),
        "join": ("paceline.cli.join", "Add a worker to a run, from any terminal."),
        "token": ("paceline.cli.token", "Make a token for a run on several hosts."),
        "agent": ("paceline.cli.agent", "Offer this machine to a run as a host."),
        "drain": ("paceline.cli.drain", "Empty a host of a run, so that it can leave."),
        "doctor": ("paceline.cli.doctor", "Check whether this machine can be a host of a run."),
        "scale": ("paceline.cli.scale", "Change the number of workers or servers of a run."),
        "set": ("paceline.cli.set", "Change mode, slots, learning rate or checkpoints of a run."),
        "status": ("paceline.cli.status", "Show what a run is doing."),
        "runs": ("paceline.cli.runs", "List runs, or remove some of them."),
        "checkpoints": ("paceline.cli.checkpoints", "List the checkpoints of a run, and check them."),
        "data": ("paceline.cli.data", "Look at data, make their index, or divide them into parts."),
        "export": ("paceline.cli.export", "Write one version of a run to files for plain PyTorch, or as ONNX."),
        "serve": ("paceline.cli.serve", "Answer requests with a model, or with that of a running job."),
        "log": ("paceline.cli.log", "Show what happened in a run; write its metrics as a table."),
        "report": ("paceline.cli.report", "Write one HTML page about a run."),
        "compare": ("paceline.cli.compare", "Put runs side by side."),
        "audit": ("paceline.cli.audit", "Prove that a run applied every sample exactly once."),
        "dev": ("paceline.cli.dev", "Tools for developers: the simulator, and campaigns of faults."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands:
            return None
        from importlib import import_module

        command: click.Command = import_module(self._commands[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._commands.items()])


@click.command(cls=_Group)
@click.version_option(package_name="paceline")
def cli() -> None:
    """Train PyTorch models on many processes that come and go."""


def main() -> None:
    """Run the command line. A UsageError prints one line and exits with 2, any other PacelineError with 3.

    A run whose checkpoints another run has taken over exits with 8.
    """
    try:
        require_linux()
        cli(prog_name="paceline", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        _discard_output()
        sys.exit(141)
    except UsageError as error:
        click.echo(f"paceline: {error}", err=True)
        sys.exit(2)
    except PacelineError as error:
        click.echo(f"paceline: {error}", err=True)
        sys.exit(8 if isinstance(error, DeposedError) and error.place else 3)


def _discard_output() -> None:
    """Let the rest of the output go nowhere: its reader has closed it, and Python would name that as an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


if __name__ == "__main__":
    main()
