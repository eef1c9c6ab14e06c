"""The options ``--log-level`` and ``--log-format``, which several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from paceline.config.role_spec import LOG_FORMATS, LOG_LEVELS

Command = TypeVar("Command", bound=Callable[..., Any])


def log_options(command: Command) -> Command:
    """Add both options to `command`, which gets them as ``log_level`` and ``log_format``; None means: not given."""
    command = click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Format of the logs.  [default: text]")(
        command
    )
    return click.option(
        "--log-level", type=click.Choice(LOG_LEVELS), help="The lowest level that is logged.  [default: warning]"
    )(command)
