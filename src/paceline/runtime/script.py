"""Runs the user's script inside a worker process, and makes sure that the job hears how it ended."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from paceline.errors import ClusterLostError, JobError, TransportError
from paceline.runtime import joined

EXIT_SCRIPT = 1
EXIT_LOST = 3
EXIT_COLLATERAL = 4
"""This worker ended because the job failed elsewhere: whoever failed first has the traceback."""


def run_script(script: str, arguments: list[str]) -> int:
    """Run `script` as ``__main__``; returns the exit code for this process."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            text = f"SystemExit: {end.code}" if isinstance(end.code, str) else f"the script called exit({end.code})"
            return _failed(text)
    except JobError as error:
        joined.close(failed=True)
        if isinstance(error, ClusterLostError):
            return _say(f"{type(error).__name__}: {error}", EXIT_LOST)
        return _say(f"{type(error).__name__}: {error}", EXIT_COLLATERAL)
    except TransportError as error:
        joined.close(failed=True)
        return _say(f"{type(error).__name__}: {error}", EXIT_LOST)
    except BaseException as error:
        frames = error.__traceback__
        # The runner's own frames say nothing to the author of the script.
        while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
            frames = frames.tb_next
        return _failed("".join(traceback.format_exception(type(error), error, frames or error.__traceback__)))
    if not joined.ever():
        return _failed(
            f"{script} ended without calling paceline.join(): under `paceline run` a script must join the job "
            "(job = paceline.join()), or run it with plain `python`"
        )
    try:
        joined.close(failed=False)
    except TransportError as error:
        return _say(f"{type(error).__name__}: {error}", EXIT_LOST)
    return 0


def _say(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


def _failed(trace: str) -> int:
    sys.stderr.write(trace.rstrip() + "\n")
    sys.stderr.flush()
    try:
        joined.fail(trace)
    finally:
        joined.close(failed=True)
    return EXIT_SCRIPT
