"""The fingerprint of a run's code: a hash of the script and of each module that it imports from its own directory.

The files are read and never executed, so a changed file is seen before anything starts. What a static look cannot see
is not covered: modules whose names are computed when the script runs, modules from other directories and installed
packages, and files that are no modules, such as configurations.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

from paceline.errors import UsageError

_SUFFIXES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
_INSTALLED = ("site-packages", "dist-packages")
_CALLS = ("import_module", "__import__")


def fingerprint(script: Path, root: Path) -> dict[str, str]:
    """The SHA-256 of `script` and of each module that it imports from `root`, directly or not, by path below `root`.

    `root` is the directory from which the script's own modules are imported: the directory of the script or, for
    ``-m package.module``, the directory that contains the package. A script outside of `root` is named by its file
    name. Follows every import statement, also within functions, and calls of `import_module` with a fixed name.

    Raises:
        UsageError: a file cannot be read.
    """
    script, root = script.resolve(), root.resolve()
    found: dict[str, str] = {}
    todo = [script, *_files(_package(script, root), root)]
    while todo:
        file = todo.pop()
        name = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
        if name in found:
            continue
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from None
        found[name] = hashlib.sha256(content).hexdigest()
        if file == script or file.suffix in SOURCE_SUFFIXES:
            for module in _imported(content, _package(file, root)):
                todo += _files(module, root)
    return dict(sorted(found.items()))


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two fingerprints, in words: one entry per file that is changed, new or missing.

    A file that is no longer imported is missing, too.
    """
    words = []
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            what = "is new" if name not in before else "is missing" if name not in now else "has changed"
            words.append(f"{name} {what}")
    return words


def is_installed(folder: Path) -> bool:
    """Whether `folder` holds installed packages or is a virtual environment: what it holds is not the user's code."""
    return folder.name in _INSTALLED or (folder / "pyvenv.cfg").exists()


def _package(file: Path, root: Path) -> Sequence[str]:
    """The names of the packages that contain `file`, from the outermost to the innermost."""
    return file.parent.relative_to(root).parts if file.is_relative_to(root) else ()


def _imported(content: bytes, package: Sequence[str]) -> Iterator[Sequence[str]]:
    """The modules that the code in `content` imports, each as the names from the outermost package inwards.

    ``from a import b`` yields (a, b): b may be a module. Code that cannot be parsed imports nothing.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name.split(".")
            case ast.ImportFrom(module=module, names=names, level=level):
                inner = module.split(".") if module else []
                outer = list(package[: len(package) - level + 1]) if level else []
                for alias in names:
                    yield [*outer, *inner, alias.name]
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _called(function) in _CALLS:
                yield name.split(".")


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _files(module: Sequence[str], root: Path) -> Iterator[Path]:
    """The files below `root` that an import of `module` loads: those of its packages, and its own."""
    folder = root
    for name in module:
        inner = folder / name
        if not name.isidentifier() or is_installed(inner):
            return
        candidates = [inner / f"__init__{suffix}" for suffix in _SUFFIXES]
        candidates += [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
        if (file := next((file for file in candidates if file.is_file()), None)) is not None:
            yield file
        folder = inner
