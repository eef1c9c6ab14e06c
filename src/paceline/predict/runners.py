"""Runners: compute the outputs of a model, which came from a script, an ONNX file or a program of torch.export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from paceline.core.predict.signature import Signature
from paceline.errors import UsageError
from paceline.predict.arrays import Arrays
from paceline.predict.module import call, named_outputs


class Runner(Protocol):
    """Computes a model. One thread at a time calls `run`."""

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of the model."""
        ...

    @property
    def platform(self) -> str:
        """The name of what computes, as the protocol's metadata show it."""
        ...

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs for `inputs`, which fit the signature. The arrays of the result belong to the caller."""
        ...


class TorchRunner:
    """Runs a torch module in this process."""

    platform = "pytorch"

    def __init__(self, model: torch.nn.Module, signature: Signature, *, positional: bool = False) -> None:
        """With `positional`, the inputs are arguments by position, in the order of the signature."""
        self.model = model
        self.signature = signature
        self._positional = positional
        self._bf16 = frozenset(spec.name for spec in signature.inputs if spec.datatype == "BF16")

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """See `Runner.run`."""
        with torch.inference_mode():
            tensors = {spec.name: self._tensor(spec.name, inputs[spec.name]) for spec in self.signature.inputs}
            found = named_outputs(self.model(*tensors.values())) if self._positional else call(self.model, tensors)
            return {spec.name: _array(found[spec.name]) for spec in self.signature.outputs}

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if name in self._bf16 else tensor


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu().contiguous()
    found: np.ndarray[Any, Any] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return found


class OnnxRunner:
    """Runs an ONNX file by onnxruntime."""

    platform = "onnx_onnxv1"

    def __init__(self, path: Path, signature: Signature, *, threads: int = 1) -> None:
        """Load the file.

        Raises:
            UsageError: onnxruntime is not installed, or cannot load the file.
        """
        try:
            import onnxruntime
        except ImportError:
            raise UsageError(f"{path} needs onnxruntime: pip install 'paceline[onnx]'") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common base
            raise UsageError(f"{path} cannot be loaded by onnxruntime: {error}") from None
        self.signature = signature

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """See `Runner.run`."""
        names = [spec.name for spec in self.signature.outputs]
        found = self._session.run(names, dict(inputs))
        return dict(zip(names, found, strict=True))


def differences(one: Mapping[str, np.ndarray[Any, Any]], other: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """The largest difference of each output, relative to the largest value of that output (absolute below 1)."""
    found = {}
    for name, value in one.items():
        here, there = value.astype(np.float64), other[name].astype(np.float64)
        if here.shape != there.shape:
            found[name] = float("inf")
            continue
        size = max(1.0, float(np.abs(here).max(initial=0.0)))
        found[name] = float(np.abs(here - there).max(initial=0.0)) / size
    return found
