"""``paceline serve``."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.log_options import log_options


@click.command("serve")
@click.argument("targets", nargs=-1, metavar="[NAME=]MODEL|RUN...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free port.")
@click.option("--follow", type=click.Choice(("latest",)), help="Follow the running job, a second or less behind.")
@click.option("--pin", "pins", multiple=True, metavar="VERSION", help="Serve this checkpoint; may be repeated.")
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Most rows computed together.")
@click.option("--batch-delay", type=click.FloatRange(0), default=0.0, metavar="MS", help="How long a batch may wait.")
@click.option("--queue", type=click.IntRange(1), default=1024, show_default=True, help="Most rows that wait.")
@click.option("--deadline", type=click.FloatRange(0.001), default=10.0, metavar="S", help="Longest wait of a request.")
@click.option("--max-body", type=click.IntRange(1), default=64, metavar="MIB", help="Largest body, also decompressed.")
@click.option("--refresh", type=click.FloatRange(0), default=0.3, metavar="S", help="Shortest time between versions.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that compute.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of torch.")
@click.option("--token-file", type=click.Path(path_type=Path), help="What clients must prove.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A further name of this server.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="The certificate, for HTTPS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The key of the certificate.")
@click.option("--drain", type=click.FloatRange(1), default=30.0, metavar="S", help="Time to end after SIGTERM.")
@click.option("--trust", is_flag=True, help="Load pt2 files, which run the code of who wrote them.")
@log_options
def command(
    targets: tuple[str, ...],
    host: str,
    port: int,
    follow: str | None,
    pins: tuple[str, ...],
    batch: int,
    batch_delay: float,
    queue: int,
    deadline: float,
    max_body: int,
    refresh: float,
    workers: int,
    threads: int,
    token_file: Path | None,
    hosts: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    drain: float,
    trust: bool,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Answer requests by the Open Inference Protocol, from model files, or from runs (by default runs/latest)."""
    from paceline.core.predict.batching import BatchLimits
    from paceline.core.predict.reader import ReaderLimits
    from paceline.errors import UsageError
    from paceline.predict.server import ListenSpec
    from paceline.runtime.serve_plan import ServePlan, read_secret
    from paceline.telemetry import logs

    logs.set_up(log_level or "warning", log_format or "text", process="predictor")
    if follow and pins:
        raise UsageError("--follow serves the newest version, --pin a given one: choose one of the two")
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together: give both")
    plan = ServePlan(
        targets=tuple(_named(target) for target in targets) or (("", Path("runs/latest")),),
        listen=ListenSpec(host=host, port=port, certificate=tls_cert, key=tls_key, drain_s=drain),
        batch=BatchLimits(max_rows=batch, delay_s=batch_delay / 1e3, max_queued_rows=queue, deadline_s=deadline),
        follow=follow is not None,
        pins=pins,
        token=None if token_file is None else read_secret(token_file),
        hosts=tuple(name.lower() for name in hosts),
        workers=workers,
        threads=threads,
        log_level=log_level or "warning",
        log_format=log_format or "text",
        trust=trust,
        max_body_nbytes=max_body << 20,
        refresh=ReaderLimits(interval_s=refresh),
    )
    if plan.workers > 1:
        from paceline.runtime.serving_router import run_router as serve
    else:
        from paceline.runtime.serving import run_server as serve
    serve(plan, lambda line: click.echo(line, err=True))


def _named(target: str) -> tuple[str, Path]:
    """The name and the path of ``NAME=PATH`` or ``PATH``."""
    name, equals, path = target.partition("=")
    return (name, Path(path)) if equals and "/" not in name else ("", Path(target))
