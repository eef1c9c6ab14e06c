"""Paceline: PyTorch training on many processes and machines, on leased work and versioned state."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline import data as data
    from paceline import datasets as datasets
    from paceline import errors as errors
    from paceline.blocks.tensors import digest as digest
    from paceline.engines.launch import launch as launch
    from paceline.engines.launched_run import Run as Run
    from paceline.runtime.current_job import join as join
    from paceline.runtime.model_files import load as load
    from paceline.worker.job import Job as Job

__version__ = "0.5.0"

_PUBLIC = {
    "Job": ("paceline.worker.job", "Job"),
    "Run": ("paceline.engines.launched_run", "Run"),
    "data": ("paceline.data", None),
    "datasets": ("paceline.datasets", None),
    "digest": ("paceline.blocks.tensors", "digest"),
    "errors": ("paceline.errors", None),
    "join": ("paceline.runtime.current_job", "join"),
    "launch": ("paceline.engines.launch", "launch"),
    "load": ("paceline.runtime.model_files", "load"),
}
__all__ = ["Job", "Run", "data", "datasets", "digest", "errors", "join", "launch", "load"]


def __getattr__(name: str) -> object:
    """Load a public name on first use, so that `import paceline` is quick and does not load torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    if name == "join":
        from paceline.config.system import require_linux

        require_linux()
    module, attribute = _PUBLIC[name]
    loaded = import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)
