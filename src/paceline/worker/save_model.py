"""Writes the model's `state_dict` as a safetensors file."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from paceline.blocks.tensors import clean_name


def _default_mode() -> int:
    """The permissions that this process gives to a new file."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def save_model(model: torch.nn.Module, path: Path) -> None:
    """Write the model's `state_dict` to `path`. A reader of `path` sees the old file or the complete new one.

    Tied weights are written under each of their names, so that a strict `load_state_dict` accepts the file.
    """
    from safetensors.torch import save_file

    state = {
        clean_name(name): value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(state, temporary, metadata={"format": "pt"})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(_default_mode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
