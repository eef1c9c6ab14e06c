"""Serves models: opens what a command line names, follows runs, and runs the HTTP server until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from paceline.config.load import local_lane
from paceline.core.predict.admission import AdmissionRules, check_exposure
from paceline.errors import PacelineError, UsageError
from paceline.predict.card import card_path, read_card
from paceline.predict.endpoints import Endpoints
from paceline.predict.follow import Follower, Saved
from paceline.predict.http import Backend, HttpFront
from paceline.predict.models import Loaded, Model, Models, warm_up
from paceline.predict.module import build
from paceline.predict.runners import TorchRunner
from paceline.predict.server import listen, require_extra, serve, url_of
from paceline.runtime.checkpoint_choice import LAST, choose_checkpoint
from paceline.runtime.model_files import (
    build_checkpoint,
    build_servable,
    checkpoint_weights,
    example_of,
    open_runner,
    script_source,
    servable_of,
)
from paceline.runtime.rundir import RunDir
from paceline.runtime.serve_plan import ServePlan
from paceline.transport.zmq.port import ZmqPort

logger = logging.getLogger(__name__)


def run_server(plan: ServePlan, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `say` gets the lines that tell the user what is served, and where.

    Raises:
        UsageError: something of the plan cannot be served; the message says why.
        CheckpointError: a checkpoint is damaged.
    """
    require_extra()
    check_exposure(plan.listen.host, plan.token)
    # It listens before the models are loaded: a port in use is told at once.
    with closing(listen(plan.listen)) as listener, opened(plan) as (models, followers):
        asyncio.run(_serve(plan, models, followers, listener, say))


@contextmanager
def opened(plan: ServePlan) -> Iterator[tuple[list[Model], list[Follower]]]:
    """Open the models of a plan, and follow their runs inside the block.

    Raises:
        UsageError: a model cannot be served, or two have one name.
    """
    import torch

    torch.set_num_threads(plan.threads)
    followers: list[Follower] = []
    try:
        models = [_open(name, path, plan, followers) for name, path in plan.targets]
        names = [model.name for model in models]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"two models are called {min(twice)}: name them, as in NAME=PATH")
        for follower in followers:
            follower.start()
        yield models, followers
    finally:
        for follower in followers:
            follower.close()


async def _serve(
    plan: ServePlan,
    models: Sequence[Model],
    followers: Sequence[Follower],
    listener: socket.socket,
    say: Callable[[str], None],
) -> None:
    executor = ThreadPoolExecutor(1, thread_name_prefix="paceline-predict")
    endpoints = Endpoints(Models(models), plan.batch, executor, max_nbytes=plan.max_body_nbytes)
    front = front_of(endpoints, plan)

    def drain() -> None:
        endpoints.draining = True
        say("ending: requests that have come are answered")

    for model in models:
        versions = f"version {', '.join(model.versions)}" if model.is_ready else "waits for the first version"
        say(f"{model.name}: {versions}" + (", follows the run" if any(f.model is model for f in followers) else ""))
    say(f"serving at {url_of(plan.listen, listener)} (Ctrl-C ends it)")
    gc.collect()
    gc.freeze()  # the objects of torch stay: the collector need not look at them again and again
    try:
        await serve(front, plan.listen, listener, drain)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def front_of(backend: Backend, plan: ServePlan) -> HttpFront:
    """The HTTP front of a backend, with the rules of the plan."""
    rules = AdmissionRules(hosts=frozenset(plan.hosts), token=plan.token, max_body_nbytes=plan.max_body_nbytes)
    return HttpFront(backend, rules, max_nbytes=plan.max_body_nbytes)


# ------------------------------------------------------------------ what is served


def _open(name: str, path: Path, plan: ServePlan, followers: list[Follower]) -> Model:
    if path.is_file() or card_path(path).is_file():
        return _open_file(name, path, plan)
    if plan.follow:
        return _open_followed(name, path, plan, followers)
    return _open_checkpoints(name, path, plan)


def _open_file(name: str, path: Path, plan: ServePlan) -> Model:
    card = read_card(path)
    runner = open_runner(path, card, trust=plan.trust, threads=plan.threads)
    lineage = card.lineage
    about: dict[str, object] = {"format": card.kind}
    if lineage.run:
        about |= {"run": lineage.run, "step": lineage.step}
    about |= card.metrics
    model = Model(name or card.name, example=card.example, about=about)
    label = str(lineage.version) if lineage.version >= 0 else "1"
    return _added(model, Loaded(runner, label, incarnation=lineage.incarnation, version=lineage.version), plan)


def _added(model: Model, loaded: Loaded, plan: ServePlan) -> Model:
    warm_up(loaded, plan.batch.max_rows)
    model.add(loaded)
    return model


def _open_checkpoints(name: str, path: Path, plan: ServePlan) -> Model:
    model: Model | None = None
    for version in plan.pins or (LAST,):
        chosen = choose_checkpoint(path, version)
        built, source = build_checkpoint(chosen)
        at = chosen.manifest.position
        if model is None:
            about = {"run": str(path), "step": at.watermark, **at.metrics}
            model = Model(name or _name(source.path), example=example_of(built), about=about)
        loaded = Loaded(
            TorchRunner(built.model, built.signature),
            str(at.version),
            incarnation=at.incarnation,
            version=at.version,
            committed_at=chosen.manifest.made_at or None,
        )
        _added(model, loaded, plan)
    assert model is not None
    return model


def _open_followed(name: str, path: Path, plan: ServePlan, followers: list[Follower]) -> Model:
    """Serve the newest checkpoint of a run, if it has one, until the first version of the running job is there."""
    run = RunDir.named(path)
    token, source = run.token(), script_source(run.plan(), path)
    servable = servable_of(source)
    built = build_servable(servable)
    model = Model(name or _name(source.path), example=example_of(built), about={"run": str(path)})
    model.describe(built.signature)
    try:
        model = _with_checkpoint(model, path, plan)
    except UsageError:
        logger.info("%s has no checkpoint yet", path)

    def open_port() -> ZmqPort:
        return ZmqPort(f"predictor/{secrets.token_hex(8)}", token, local=local_lane(), insecure_blocks=None)

    followers.append(
        Follower(
            model,
            lambda: build(servable),
            built.signature,
            open_port,
            run.coordinator,
            last=lambda: _last_saved(run),
            limits=plan.refresh,
            warm_rows=plan.batch.max_rows,
        )
    )
    return model


def _last_saved(run: RunDir) -> Saved | None:
    """The newest complete checkpoint of a run."""
    try:
        chosen = choose_checkpoint(run.path)
    except PacelineError:
        return None
    at = chosen.manifest.position
    return Saved(at.incarnation, at.version, chosen.manifest.made_at, lambda: checkpoint_weights(chosen))


def _with_checkpoint(model: Model, path: Path, plan: ServePlan) -> Model:
    kept = _open_checkpoints(model.name, path, plan)
    model.add(kept.current)
    return model


def _name(script: str) -> str:
    return Path(script).stem.replace(" ", "-")
