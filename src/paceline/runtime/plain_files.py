"""Writes a kept version of a run to files that plain PyTorch reads."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from paceline.checkpoint.export import Exported, read_tensors
from paceline.errors import StateError, UsageError
from paceline.runtime.checkpoint_choice import Chosen

SUFFIX = ".safetensors"


def export_weights(chosen: Chosen, path: Path) -> None:
    """Write the weights of a checkpoint to `path`, without the code of the model: a tied one under its first name.

    Raises:
        CheckpointError: a file of the checkpoint is missing or damaged.
        UsageError: `path` does not end in .safetensors.
        StateError: the file cannot be written.
    """
    write_safetensors(path, _read(chosen).weights, {"format": "pt"})


def export_optimizer(chosen: Chosen, path: Path) -> None:
    """Write the optimizer's state of a checkpoint to `path`; raises as `export_weights`."""
    exported = _read(chosen)
    write_safetensors(path, exported.state, exported.metadata(chosen.hyper()))


def _read(chosen: Chosen) -> Exported:
    return read_tensors(chosen.storage, chosen.folder, chosen.manifest)


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write one file; a reader of `path` sees the old file or the complete new one.

    Raises:
        UsageError: `path` does not end in .safetensors.
        StateError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if path.suffix != SUFFIX:
        raise UsageError(f"{path} must end in {SUFFIX}: give such as {path.with_suffix(SUFFIX)}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata=metadata)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise StateError(f"cannot write {path}: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def loading_lines(weights: Path, optimizer: Path | None) -> list[str]:
    """The lines of Python that load what was written, with a `model` and an `optimizer` like those of the script."""
    lines = ["from safetensors.torch import load_file", f'model.load_state_dict(load_file("{weights}"))']
    if optimizer is not None:
        lines += [
            "",
            "import json",
            "from safetensors import safe_open",
            f'with safe_open("{optimizer}", "pt") as file:',
            "    state = {}",
            "    for key in file.keys():",
            '        number, name = key.split(".", 1)',
            "        state.setdefault(int(number), {})[name] = file.get_tensor(key)",
            '    param_groups = json.loads(file.metadata()["param_groups"])',
            'optimizer.load_state_dict({"state": state, "param_groups": param_groups})',
        ]
    return lines
