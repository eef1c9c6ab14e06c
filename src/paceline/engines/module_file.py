"""Finds the file of a module that `paceline run -m` names, without importing anything of it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from paceline.errors import UsageError


def named_script(words: Path, *, is_module: bool) -> dict[str, Any]:
    """The fields `script` and `module` of a plan, for a script or (`is_module`) a module that the user names.

    Raises:
        UsageError: there is no such module, or it has no Python file.
    """
    if not is_module:
        return {"script": words, "module": ""}
    return {"script": module_file(str(words), Path.cwd()), "module": str(words)}


def module_file(name: str, cwd: Path) -> Path:
    """The file that `python -m name` runs in the directory `cwd`. Imports nothing: the launcher must not load torch.

    Raises:
        UsageError: there is no such module, or it has no Python file.
    """
    if name.endswith(".py") or not all(word.isidentifier() for word in name.split(".")):
        raise UsageError(f"-m {name}: this is not the name of a module. Write package.module, or leave -m out")
    spec = _find(name, cwd)
    if spec.submodule_search_locations is not None:  # `python -m package` runs package/__main__.py
        spec = _find(f"{name}.__main__", cwd)
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"-m {name}: this module has no Python file")
    return Path(spec.origin)


def _find(name: str, cwd: Path) -> ModuleSpec:
    first, *others = name.split(".")
    full, found = first, _find_first(first, cwd)
    for word in others:
        if found is not None:
            # Only the last word is given: with the whole name, a package without `__init__.py` would need its parent
            # to be imported.
            found = PathFinder.find_spec(word, list(found.submodule_search_locations or []))
            full = f"{full}.{word}"
    if found is None:
        raise UsageError(f"-m {name}: there is no module {full} in {cwd} or on the path of {sys.executable}")
    return found


def _find_first(word: str, cwd: Path) -> ModuleSpec | None:
    """Find a module or a package at the top, first in `cwd` and then where an import would find it."""
    found = PathFinder.find_spec(word, [str(cwd)])
    for finder in sys.meta_path:
        if found is None and hasattr(finder, "find_spec"):
            found = finder.find_spec(word, None)
    return found
