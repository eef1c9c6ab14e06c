"""Writes a model as ONNX or as a program of torch.export, and compares what the written file computes with torch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.core.predict.signature import Signature
from paceline.errors import ExportError, UsageError
from paceline.predict.module import leading_arguments, rows_of
from paceline.predict.runners import OnnxRunner, Runner, TorchRunner, differences

TOLERANCE = 1e-4
"""The largest difference between the outputs of torch and of an exported file, relative to the largest output."""

FORMATS = ("safetensors", "onnx", "pt2")
_ROWS = 3  # rows of the comparison: another number than the model was traced with


def check_format(kind: str) -> None:
    """Check that the packages of a format are installed.

    Raises:
        UsageError: one is missing; the message has the line that installs it.
    """
    if kind != "onnx":
        return
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--format onnx needs {error.name}: pip install 'paceline[onnx]'") from None


def write_onnx(path: Path, model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], signature: Signature) -> float:
    """Write `model` as ONNX; returns the largest relative difference of onnxruntime's outputs.

    Raises:
        ExportError: the model cannot be exported, or the file computes something else.
    """
    traced = rows_of(inputs, 2) if signature.batched else dict(inputs)
    try:
        with _quiet():
            torch.onnx.export(
                model,
                (),
                str(path),
                kwargs=traced,
                input_names=[spec.name for spec in signature.inputs],
                output_names=[spec.name for spec in signature.outputs],
                dynamic_shapes=_dynamic(signature),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        raise _failed("onnx", error) from error
    return _compare("onnx", OnnxRunner(path, signature), model, inputs, signature)


def write_pt2(path: Path, model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], signature: Signature) -> float:
    """Write `model` as a program of torch.export; returns the largest relative difference of its outputs.

    Raises:
        ExportError: the model cannot be exported, or the file computes something else.
    """
    traced = rows_of(inputs, 2) if signature.batched else dict(inputs)
    try:
        with _quiet():
            arguments = tuple(traced[name] for name in leading_arguments(model, traced))
            program = torch.export.export(model, arguments, dynamic_shapes=_dynamic(signature))
            torch.export.save(program, path)
    except UsageError:
        raise
    except Exception as error:
        raise _failed("pt2", error) from error
    return _compare("pt2", load_pt2(path, signature), model, inputs, signature)


def load_pt2(path: Path, signature: Signature) -> TorchRunner:
    """Load a program of torch.export. It is unpickled: whoever wrote it runs code in this process.

    Raises:
        UsageError: the file cannot be loaded.
    """
    try:
        with _quiet():
            program = torch.export.load(path).module()
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded by torch.export: {error}") from None
    return TorchRunner(program, signature, positional=True)


def _dynamic(signature: Signature) -> dict[str, dict[int, Any]] | None:
    """The dimensions that may change: the first of every input of a batched model, the same for all."""
    if not signature.batched:
        return None
    rows = torch.export.Dim("rows", min=1)
    return {spec.name: {0: rows} for spec in signature.inputs}


def _compare(
    kind: str,
    runner: Runner,
    model: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    signature: Signature,
) -> float:
    """Compute some rows by torch and by the written file, and compare."""
    tried = rows_of(inputs, _ROWS) if signature.batched else dict(inputs)
    arrays = {name: _numpy(value) for name, value in tried.items()}
    found = differences(TorchRunner(model, signature).run(arrays), runner.run(arrays))
    worst = max(found, key=lambda name: found[name])
    if not found[worst] <= TOLERANCE:
        raise ExportError(
            f"the {kind} file computes {worst} with a difference of {found[worst]:.2g} from torch (at most "
            f"{TOLERANCE:g} is allowed): export it with --format safetensors"
        )
    return found[worst]


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return found


def _failed(kind: str, error: Exception) -> ExportError:
    """Why an export failed, in the first lines of what torch says, and what would work."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:3])[:500] or type(error).__name__
    other = "" if kind == "pt2" else ", or --format pt2"
    return ExportError(
        f"the model cannot be exported as {kind}: {said}. torch.export follows the model with unknown rows: a "
        "branch on values, or code that is not torch, stops it. --format safetensors always works: it keeps the "
        f"script's model{other}"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress lines, warnings and logs of torch's exporters away; errors are raised."""
    names = ("torch.onnx", "onnxscript", "torch.export", "torch._dynamo")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
