"""``paceline export``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|CHECKPOINT")
@click.argument("version", metavar="last|VERSION")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(("safetensors", "onnx", "pt2")), help="By default as OUT ends.")
def command(run: Path, version: str, out: Path, kind: str | None) -> None:
    """Write the model of a checkpoint to OUT, with a model card beside it.

    RUN is a run directory, and VERSION the number of one of its checkpoints, or last. CHECKPOINT is the folder of one,
    and goes with last. The script must call job.servable(factory, example). ONNX and pt2 files are compared with torch
    before they count.
    """
    from paceline.errors import UsageError
    from paceline.runtime.checkpoint_choice import choose_checkpoint
    from paceline.runtime.model_files import export_model

    kind = kind or out.suffix.removeprefix(".")
    if kind not in ("safetensors", "onnx", "pt2"):
        raise UsageError(f"{out}: the name of the file ends in .safetensors, .onnx or .pt2")
    chosen = choose_checkpoint(run, version)
    card, difference = export_model(chosen, out, kind)
    at = card.lineage
    click.echo(f"{out}: {card.kind} of version {at.version} (step {at.step}), card {out.name}.card.json")
    if kind != "safetensors":
        click.echo(f"compared with torch: outputs differ by {difference:.1g} at most, relative to the largest")
