"""Writes the model's `state_dict` as a safetensors file."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from paceline.blocks.tensors import clean_name
from paceline.errors import SaveError, UsageError

SUFFIX = ".safetensors"


def _default_mode() -> int:
    """The permissions that this process gives to a new file."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def with_suffix(path: Path) -> Path:
    """The file that is written for `path`: `path` itself, or a name with the suffix appended if it has another one."""
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def refuse_suffix(path: Path) -> None:
    """Refuse a name that would be taken for another format. The weights are already in `with_suffix(path)`.

    Raises:
        UsageError: `path` has another suffix. The message shows how to save and how to load.
    """
    if path.suffix != SUFFIX:
        right = path.with_suffix(SUFFIX)
        raise UsageError(
            f'job.save("{path}") is refused: job.save writes safetensors, which torch.load cannot read. The weights '
            f'are in {with_suffix(path)}. Save with job.save("{right}"), and load with model.load_state_dict('
            f'safetensors.torch.load_file("{right}"))'
        )


def file_digest(path: Path) -> str:
    """The SHA-256 of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_model(model: torch.nn.Module, path: Path) -> str:
    """Write the model's `state_dict` to `path`. A reader of `path` sees the old file or the complete new one.

    Tied weights are written under each of their names, so that a strict `load_state_dict` accepts the file. Equal
    weights give equal files. Returns the SHA-256 of the file.

    Raises:
        SaveError: the file cannot be written. The old file, if there is one, is unchanged.
    """
    from safetensors import SafetensorError

    state = {
        clean_name(name): value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    try:
        return _write(state, path)
    except OSError as error:
        folder = f" ({error.filename})" if error.filename in map(str, path.parents) else ""
        raise SaveError(str(path), f"{error.strerror or error}{folder}") from None
    except SafetensorError as error:
        raise SaveError(str(path), _cause(str(error))) from None


def _write(state: dict[str, torch.Tensor], path: Path) -> str:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(state, temporary, metadata={"format": "pt"})  # a second entry would be written in random order
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(_default_mode())
        found = file_digest(temporary)
        temporary.replace(path)
        return found
    finally:
        with suppress(OSError):  # on a read-only disk there is nothing to remove
            temporary.unlink(missing_ok=True)


def _cause(text: str) -> str:
    """The reason in an error of safetensors, which names the number of the system's error."""
    found = re.search(r"os error (\d+)", text)
    return os.strerror(int(found[1])) if found else text
