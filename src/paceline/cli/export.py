"""``paceline export``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("version", metavar="best|last|VERSION")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--optimizer", type=click.Path(path_type=Path), metavar="FILE", help="Also write the optimizer's state.")
def command(run: Path, version: str, out: Path, optimizer: Path | None) -> None:
    """Write the weights of one kept version of RUN to OUT, a safetensors file, and say how to load them.

    `best` is the best version by --best, `last` the newest one; `paceline checkpoints` lists all versions.
    """
    from paceline.engines.chosen_version import choose_version
    from paceline.engines.export import loading_lines, read_version, write_safetensors
    from paceline.runtime.rundir import RunDir

    chosen = choose_version(RunDir.named(run), version)
    exported = read_version(chosen)
    write_safetensors(out, exported.weights, {"format": "pt"})
    if optimizer is not None:
        write_safetensors(optimizer, exported.state, exported.metadata(chosen.hyper))
    click.echo(f"{out}: version {chosen.version} ({chosen.folder}): {chosen.why}", err=True)
    click.echo("\n".join(loading_lines(out, optimizer)))
