"""`paceline export`: one kept version of a run as a model file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|CHECKPOINT")
@click.argument("version", metavar="best|last|VERSION")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(("safetensors", "onnx", "pt2")), help="By default as OUT ends.")
@click.option("--optimizer", type=click.Path(path_type=Path), metavar="FILE", help="Also write the optimizer's state.")
def command(run: Path, version: str, out: Path, kind: str | None, optimizer: Path | None) -> None:
    """Write the model of a checkpoint to OUT, with a model card beside it.

    RUN is a run directory: `best` is its best version by --best, `last` the newest one, and `paceline checkpoints`
    lists all. CHECKPOINT is the folder of one checkpoint, and goes with last. ONNX and pt2 need a script that calls
    job.servable(factory, example), and are compared with torch before they count. Without job.servable, safetensors
    are written without a card.
    """
    from paceline.errors import UsageError
    from paceline.runtime.checkpoint_choice import choose_checkpoint
    from paceline.runtime.model_files import export_model
    from paceline.runtime.plain_files import export_optimizer, loading_lines

    kind = kind or out.suffix.removeprefix(".")
    if kind not in ("safetensors", "onnx", "pt2"):
        raise UsageError(f"{out}: the name of the file ends in .safetensors, .onnx or .pt2")
    chosen = choose_checkpoint(run, version)
    exported = export_model(chosen, out, kind)
    if optimizer is not None:
        export_optimizer(chosen, optimizer)
    at = f"version {chosen.version} ({chosen.folder}): {chosen.why}"
    card = f"card {out.name}.card.json" if exported.card is not None else f"no card: {exported.lacks}"
    click.echo(f"{out}: {kind} of {at}; {card}", err=True)
    if kind == "safetensors":
        click.echo("\n".join(loading_lines(out, optimizer)))
    else:
        text = f"compared with torch: outputs differ by {exported.difference:.1g} at most, relative to the largest"
        click.echo(text, err=True)
