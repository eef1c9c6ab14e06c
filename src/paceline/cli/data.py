"""``paceline data``: what data are, their index, and parts of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


@click.group("data")
def command() -> None:
    """Look at data, make their index, or divide them into parts."""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say how data are read, as arguments of `paceline.data.open`."""
    for option in (
        click.option("--image-size", nargs=2, type=int, default=None, help="Scale images to this height and width."),
        click.option(
            "--stride", type=int, default=None, help="Tokens from one window to the next. [default: --window]"
        ),
        click.option("--window", type=int, default=None, help="Read windows of this many tokens of text."),
        click.option("--columns", default=None, help="Read only these columns, as a,b,c."),
        click.option("--format", default=None, help="The format, if the suffix does not say it: csv, parquet, …"),
        click.argument("url"),
    ):
        function = option(function)
    return function


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    columns = given.pop("columns")
    return {**given, "columns": columns.split(",") if columns else None}


@command.command("inspect")
@_options
@click.option("--samples", default=3, show_default=True, help="How many samples are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
def inspect(url: str, samples: int, as_json: bool, **given: Any) -> None:
    """Show what URL is: how many samples and shards, the columns, a few samples, the fingerprint."""
    from paceline.data.inspection import inspect as inspected

    found = inspected(url, samples=samples, **_arguments(given), progress=_progress)
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        click.echo("\n".join(found.lines))


@command.command("index")
@_options
def index(url: str, **given: Any) -> None:
    """Make the index of URL on this host, so that no run has to wait for it."""
    from paceline.data.opening import open as open_source

    source = open_source(url, **_arguments(given), progress=_progress)
    click.echo(f"{source.length:,} samples in {source.num_shards:,} shards")


@command.command("split")
@_options
@click.option("--fractions", required=True, help="The parts, as 0.9,0.1.")
@click.option("--seed", default=0, show_default=True, help="Chooses the samples.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Write the positions here, as .npy files.")
def split(url: str, fractions: str, seed: int, out: Path | None, **given: Any) -> None:
    """Divide URL into parts that have no sample in common: positions, not copies.

    `paceline.data.split(source, fractions, seed)` gives the same parts to a script, without any file.
    """
    import numpy as np

    from paceline.data.opening import open as open_source
    from paceline.data.sources.parts import split as cut
    from paceline.errors import UsageError

    try:
        shares = [float(word) for word in fractions.split(",")]
    except ValueError:
        raise UsageError(f"--fractions must be numbers such as 0.9,0.1, not {fractions}") from None
    parts = cut(open_source(url, **_arguments(given), progress=_progress), shares, seed)
    for number, (share, part) in enumerate(zip(shares, parts, strict=True)):
        line = f"part {number}: {part.length:,} samples ({share:g})"
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            np.save(out / f"part-{number}.npy", part.places(np.arange(part.length)), allow_pickle=False)
            line += f", positions in {out / f'part-{number}.npy'}"
        click.echo(line)


def _progress(done: int, total: int) -> None:
    """Show how far an index is, on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done >= total else ""
        click.echo(f"\rindexing: {100 * done // max(1, total)} % of {total / 1e6:,.0f} MB{end}", nl=False, err=True)
