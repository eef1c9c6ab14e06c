"""``paceline set``."""

from __future__ import annotations

import click


@click.command("set")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] DIAL=VALUE...")
def command(words: tuple[str, ...]) -> None:
    """Change dials of RUN (by default runs/latest) while it runs, from the first step on that it can.

    Dials: mode=bsp, ssp:K, asp or allreduce; slots=N; lr=0.01, or lr=x0.5 for half of what the script gives;
    checkpoint_every=500 (steps), 30s (seconds) or 0 (never). A mode, and its slots, hold until the next mode of the
    run's schedule; other dials hold until they are set again.
    """
    from pathlib import Path

    from paceline.config.live import in_words, parse_change
    from paceline.engines.live_change import set_dials
    from paceline.runtime.rundir import RunDir

    run, dials = (None, words) if "=" in words[0] else (Path(words[0]), words[1:])
    asked = parse_change(dials)
    where = RunDir.named(run)
    done = set_dials(where, asked)
    changed = in_words(done.change)
    click.echo(
        f"{where.path}: from step {done.step}: {changed}" if changed else f"{where.path}: {in_words(asked)}, as before"
    )
