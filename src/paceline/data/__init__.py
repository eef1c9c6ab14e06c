"""The data of a phase: where samples come from, and how the batch of a slot is made.

Two protocols can be implemented by others: `source.Source` (samples by position) and `batch_source.BatchSource` (the
batch of a slot). This package knows slots and seeds; it knows neither the model nor the coordinator.

`open` gives the source of an address, `arrays` and `iterable` those of what is in memory, `split` cuts one into parts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.data.inspection import inspect as inspect
    from paceline.data.opening import open as open
    from paceline.data.sources.arrays import ColumnArrays as arrays
    from paceline.data.sources.iterables import IterableShards as iterable
    from paceline.data.sources.parts import split as split

_PUBLIC = {
    "arrays": ("paceline.data.sources.arrays", "ColumnArrays"),
    "inspect": ("paceline.data.inspection", "inspect"),
    "iterable": ("paceline.data.sources.iterables", "IterableShards"),
    "open": ("paceline.data.opening", "open"),
    "split": ("paceline.data.sources.parts", "split"),
}
__all__ = ["arrays", "inspect", "iterable", "open", "split"]


def __getattr__(name: str) -> object:
    """Load a public name on first use: the modules of this package are imported without it."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'paceline.data' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)
