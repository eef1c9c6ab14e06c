"""Runs a script up to its `job.servable`, to learn how it builds its model: nothing is trained."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from paceline.data.servable import Servable, servable
from paceline.errors import UsageError
from paceline.runtime import current_job

_loaded: list[ModuleType] = []
"""The modules of the scripts that were run: the model's functions read their globals there."""


class _Found(BaseException):
    """Ends the script at its `job.servable`. No `except Exception` of the script catches it."""

    def __init__(self, found: Servable) -> None:
        super().__init__("job.servable was called")
        self.found = found


class _Stand:
    """Stands for the job while a script is asked for its model."""

    step, epoch, lead, passed = 0, 0, False, False

    def __init__(self, script: str) -> None:
        self._script = script

    def servable(self, factory: object, example: Any) -> NoReturn:
        """End the script: all that is wanted is known."""
        raise _Found(servable(factory, example))

    def prepare(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        """Accept a model that is prepared before `job.servable` is called."""
        return arguments

    def __enter__(self) -> _Stand:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(
            f"{self._script} uses job.{name} before job.servable(factory, example): call job.servable right after "
            "paceline.join(), so that the model can be built without training"
        )


def script_servable(
    script: Path, arguments: Sequence[str] = (), *, cwd: Path | None = None, module: str = ""
) -> Servable:
    """Run `script` with `arguments` in `cwd` up to its `job.servable`, and return what it said there.

    What the script prints goes to standard error.

    Raises:
        UsageError: the script ends or fails before, or uses the job for something else first.
    """
    if not script.is_file():
        raise UsageError(f"{script} is missing: it has the job.servable(...) that builds the model")
    try:
        with _as_main(script, arguments, cwd), contextlib.redirect_stdout(sys.stderr):
            current_job.stand_in(_Stand(script.name))
            try:
                _run(script, module)
            finally:
                current_job.stand_in(None)
    except _Found as end:
        return end.found
    except UsageError:
        raise
    except SystemExit as end:
        raise UsageError(f"{script} ended with exit({end.code}) before it called job.servable(...)") from None
    except Exception as error:
        raise UsageError(
            f"{script} failed before it called job.servable(...): {type(error).__name__}: {error}"
        ) from error
    raise UsageError(
        f"{script} does not say how to build its model: call job.servable(Model, example) right after paceline.join(), "
        "with a function that builds the model and an example of its input"
    )


def _run(script: Path, module: str) -> None:
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    code = compile(script.read_bytes(), str(script), "exec")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    _loaded.append(main)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    finally:
        sys.modules["__main__"] = before


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str], cwd: Path | None) -> Iterator[None]:
    """Let this process look as the script expects it: its arguments, its directory, its imports."""
    argv, path, folder = sys.argv, sys.path[:], Path.cwd()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    if cwd is not None and cwd.is_dir():
        os.chdir(cwd)
        sys.path.insert(1, str(cwd))
    try:
        yield
    finally:
        os.chdir(folder)
        sys.argv = argv
        sys.path[:] = [*path, *dict.fromkeys(entry for entry in sys.path if entry not in path)]  # for later imports
