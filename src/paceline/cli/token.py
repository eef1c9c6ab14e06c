"""``paceline token``."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("token")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Make a new token in FILE, readable by you alone: who has it can take part in the run.

    Copy FILE to every host, and give it to `paceline run` and `paceline agent` with --token-file.
    """
    from paceline.errors import UsageError
    from paceline.wire.token import new_token

    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{file} exists: give another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as opened:
        opened.write(new_token().hex() + "\n")
    click.echo(f"a new token is in {file}")
