"""Model files: written from a checkpoint with a card beside them, and loaded again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch

from paceline.blocks.tensors import clean_name, digest
from paceline.checkpoint.shards import read_shards
from paceline.coordinator.json_numbers import plain
from paceline.coordinator.reader import LogReader
from paceline.core.effects import DataFact
from paceline.core.layout import cut
from paceline.core.predict.signature import Signature
from paceline.data.servable import Servable
from paceline.errors import MismatchError, SaveError, StateError, UsageError
from paceline.predict.card import Lineage, ModelCard, ScriptSource, card_path, encode_card, read_card
from paceline.predict.formats import FORMATS, check_format, load_pt2, write_onnx, write_pt2
from paceline.predict.module import Weights, build, describe, fill, join_blocks, named_inputs, own_tensors
from paceline.predict.runners import OnnxRunner, Runner, TorchRunner
from paceline.runtime.checkpoint_choice import Chosen
from paceline.runtime.plain_files import export_weights
from paceline.runtime.rundir import replace_file
from paceline.runtime.servable_script import script_servable
from paceline.worker.save_model import file_digest, save_model

_EXAMPLE_NUMEL = 4096  # the largest row of an input that the card shows


@dataclass(frozen=True, slots=True)
class Built:
    """A model with its weights, ready to predict, and what is known of it."""

    model: torch.nn.Module
    signature: Signature
    servable: Servable


def script_source(plan: dict[str, Any], where: object) -> ScriptSource:
    """The script of a run, by its plan.

    Raises:
        UsageError: the plan does not say it.
    """
    if not plan.get("script"):
        raise UsageError(f"{where} does not say which script made it: name the directory of the run instead")
    cwd = Path(plan.get("cwd") or Path.cwd())
    path = cwd / plan["script"]
    sha256 = file_digest(path) if path.is_file() else ""
    return ScriptSource(str(path), tuple(plan.get("arguments") or ()), str(cwd), plan.get("module") or "", sha256)


def servable_of(source: ScriptSource) -> Servable:
    """What the script says of its model: see `script_servable`."""
    return script_servable(Path(source.path), source.arguments, cwd=Path(source.cwd), module=source.module)


def build_servable(servable: Servable) -> Built:
    """Build a model, with the weights of its factory."""
    model = build(servable)
    return Built(model, describe(model, servable), servable)


def checkpoint_weights(chosen: Chosen) -> dict[str, torch.Tensor]:
    """The tensors of the model in a checkpoint.

    Raises:
        CheckpointError: a file of it is missing or damaged.
    """
    spec = chosen.manifest.model
    wanted = range(len(cut(spec.tensors)))
    return join_blocks(spec, read_shards(chosen.storage, chosen.folder, chosen.manifest, wanted))


def build_checkpoint(chosen: Chosen) -> tuple[Built, ScriptSource]:
    """The model of a checkpoint, by the factory of its script."""
    source = script_source(chosen.plan, chosen.storage.url)
    built = build_servable(servable_of(source))
    fill(built.model, checkpoint_weights(chosen))
    return built, source


# ------------------------------------------------------------------ write


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A file that was written. `difference` is the largest relative one between its outputs and those of torch.

    Without a `card`, `lacks` says why.
    """

    card: ModelCard | None
    difference: float = 0.0
    lacks: str = ""


def export_model(chosen: Chosen, out: Path, kind: str) -> ExportedModel:
    """Write the model of a checkpoint to `out`, and its card beside it.

    A safetensors file is written without a card if the script does not say how to build the model.

    Raises:
        UsageError: the script does not say how to build the model, or a package is missing.
        ExportError: the model cannot be written in this format.
        SaveError: the file cannot be written.
    """
    if out.suffix != f".{kind}":
        raise UsageError(f"{out}: a file of --format {kind} is called …{FORMATS_SUFFIX[kind]}")
    check_format(kind)
    try:
        built, source = build_checkpoint(chosen)
    except UsageError as error:
        if kind != "safetensors":
            raise
        export_weights(chosen, out)
        card_path(out).unlink(missing_ok=True)  # it would describe another file
        return ExportedModel(None, lacks=str(error))
    difference = _write(built, out, kind)
    card = _card(chosen, built, source, out, kind)
    replace_file(card_path(out), encode_card(card))
    return ExportedModel(card, difference)


FORMATS_SUFFIX = {kind: f".{kind}" for kind in FORMATS}


def _write(built: Built, out: Path, kind: str) -> float:
    if kind == "safetensors":
        save_model(built.model, out)
        return 0.0
    inputs = named_inputs(built.model, built.servable.example)
    temporary = out.with_name(f".{out.stem}.{os.getpid()}.tmp{out.suffix}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write = write_onnx if kind == "onnx" else write_pt2
        difference = write(temporary, built.model, inputs, built.signature)
        temporary.replace(out)
    except OSError as error:
        raise SaveError(str(out), error.strerror or str(error)) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return difference


def _card(chosen: Chosen, built: Built, source: ScriptSource, out: Path, kind: str) -> ModelCard:
    at = chosen.manifest.position
    name = Path(source.path).stem.replace(" ", "-")
    return ModelCard(
        name=name,
        kind=kind,
        sha256=file_digest(out),
        digest=digest(built.model),
        signature=built.signature,
        example=example_of(built),
        metrics=plain({**at.logs, **at.metrics}),
        lineage=Lineage(
            run="" if chosen.run is None else str(chosen.run.path.resolve()),
            incarnation=at.incarnation,
            version=at.version,
            step=at.watermark,
            samples=at.samples,
            seed=at.job.seed,
            data=tuple(phase.spec.data_len for phase in at.phases),
            fingerprints=_fingerprints(chosen),
        ),
        script=source,
        paceline=version("paceline"),
        torch=str(torch.__version__),
    )


def example_of(built: Built) -> dict[str, Any]:
    """One row of each input, for pages and people; an input of many elements is left out."""
    inputs = named_inputs(built.model, built.servable.example)
    first = {name: value[:1] if built.signature.batched else value for name, value in inputs.items()}
    return {name: value.tolist() for name, value in first.items() if value.numel() <= _EXAMPLE_NUMEL}


def _fingerprints(chosen: Chosen) -> dict[str, str]:
    """A hash of the samples that the run has seen of each of its data sets, if its log is there."""
    if chosen.run is None or not chosen.run.log_file.is_file():
        return {}
    found = {}
    with suppress(StateError), LogReader(chosen.run.log_file) as log:
        for row in log.facts():
            if isinstance(row.fact, DataFact):
                known = row.fact.fingerprint
                content = msgspec.json.encode((known.length, known.source, known.samples))
                found[row.fact.use] = hashlib.sha256(content).hexdigest()[:16]
    return found


# ------------------------------------------------------------------ read


def load(
    path: str | Path, factory: Callable[[], torch.nn.Module] | None = None, *, trust: bool = False
) -> torch.nn.Module:
    """The model in a file that `paceline export` wrote, ready to predict, in plain PyTorch.

    A safetensors file needs its model's code: `factory` builds the model, or the script that the card names. A pt2 file
    is unpickled, which runs the code of whoever wrote it: only with `trust`.

    Raises:
        UsageError: the file or its card is missing or damaged, or it is ONNX, or pt2 without `trust`.
        MismatchError: the factory builds another model.
    """
    path = Path(path)
    card = read_card(path)
    check_file(path, card)
    if card.kind == "onnx":
        raise UsageError(f"{path} is ONNX, which torch does not load: use onnxruntime, or export it as safetensors")
    if card.kind == "pt2":
        return _trusted(path, card, trust).model
    if factory is not None:
        model = factory().eval()
    elif card.script is not None:
        model = build_servable(_still(card.script, path)).model
    else:
        raise UsageError(f"the card of {path} names no script: give paceline.load(path, factory=Model)")
    fill(model, _file_weights(path, model))
    return model


def open_runner(path: Path, card: ModelCard, *, trust: bool = False, threads: int = 1) -> Runner:
    """A runner of a model file, to serve it.

    Raises:
        UsageError: as `load`; or onnxruntime is missing.
    """
    check_file(path, card)
    if card.kind == "onnx":
        return OnnxRunner(path, card.signature, threads=threads)
    if card.kind == "pt2":
        return _trusted(path, card, trust)
    return TorchRunner(load(path), card.signature)


def _trusted(path: Path, card: ModelCard, trust: bool) -> TorchRunner:
    if not trust:
        raise UsageError(
            f"{path} is a pt2 file, which torch unpickles: whoever wrote it can run code here. If you trust it, use "
            "--trust, or paceline.load(path, trust=True)"
        )
    return load_pt2(path, card.signature)


def _still(source: ScriptSource, path: Path) -> Servable:
    """What the script of a card says, if it is there and as it was."""
    script = Path(source.path)
    if not script.is_file():
        raise UsageError(
            f"{script}, the script with the model of {path}, is missing: give paceline.load(path, factory=Model), or "
            "export the model as onnx"
        )
    return servable_of(source)


def check_file(path: Path, card: ModelCard) -> None:
    """Check that a model file is the one that its card describes.

    Raises:
        UsageError: it is missing, or has other bytes.
    """
    try:
        found = file_digest(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if found != card.sha256:
        raise UsageError(f"{path} is not the file that its card describes (its SHA-256 differs): export it again")


def _file_weights(path: Path, model: torch.nn.Module) -> Weights:
    """The weights of a safetensors file, a tied one once, as `fill` takes them."""
    from safetensors.torch import load_file

    weights = load_file(path)
    own = own_tensors(model)
    saved = {clean_name(name) for name in model.state_dict()}
    missing = own.keys() - weights.keys()
    if persistent := missing & saved:
        raise MismatchError(f"{path} has no {min(persistent)}, which the model has: build the model that was exported")
    if extra := weights.keys() - saved:
        raise MismatchError(f"{path} has {min(extra)}, which the model has not: build the model that was exported")
    return {
        name: weights.get(name, tensor) for name, tensor in own.items()
    }  # a model may have buffers it does not save
