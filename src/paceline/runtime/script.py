"""Runs the user's script in the process of a worker, and tells the job how the script ended."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from pathlib import Path

from paceline.errors import ClusterLostError, JobError, JobRewoundError, TransportError, UsageError
from paceline.runtime import current_job
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_COLLATERAL, EXIT_DONE, EXIT_LEFT, EXIT_LOST, EXIT_SCRIPT
from paceline.runtime.last_words import say_last_words
from paceline.worker.preemption import Preempted, heed_sigterm
from paceline.worker.script_errors import add_remedy, loader_death


def run_script(script: str, arguments: list[str], *, module: str = "") -> int:
    """Run `script` as ``__main__``; returns the exit code for this process.

    With a `module`, whose file is `script`, it is run as `python -m module` does it: imports begin in this directory.
    """
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.getcwd() if module else str(Path(script).resolve().parent))
    try:
        heed_sigterm(current_job.preemption, EXIT_LEFT)
        error = _run(script, module)
        if not current_job.preemption.requested:
            current_job.preemption.accept()  # the script has ended by itself: a later request changes nothing
    except Preempted as late:
        error = late
    if current_job.preemption.requested and (error is not None or not current_job.ever()):
        return _leave(error)
    current_job.preemption.accept()
    return _done(script) if error is None else _ended(script, error)


def _run(script: str, module: str) -> BaseException | None:
    """Run the script, and return the exception that ended it; None if it ended without one."""
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end if end.code not in (None, 0) else None
    except BaseException as error:
        return error
    return None


def _leave(error: BaseException | None) -> int:
    """Leave the job after a request to leave. An exception of the script is printed and does not fail the job."""
    if error is not None and not isinstance(error, Preempted):
        sys.stderr.write("".join(traceback.format_exception(error)))
    current_job.close(failed=True)
    return EXIT_LEFT


def _done(script: str) -> int:
    if not current_job.ever():
        return _failed(
            f"{script} ended without calling paceline.join(): under `paceline run` a script must join the job "
            "(job = paceline.join()), or run it with plain `python`"
        )
    try:
        current_job.close(failed=False)
    except (JobRewoundError, TransportError) as error:
        return _lost(error)
    return EXIT_DONE


def _ended(script: str, error: BaseException) -> int:
    rewound = _rewound(error)
    if rewound is not None or isinstance(error, JobError | TransportError):
        current_job.close(failed=True)
        return _lost(rewound or error)
    died = loader_death(error)
    if died is not None:
        return _lost_loader(died)
    if isinstance(error, SystemExit):
        text = f"SystemExit: {error.code}" if isinstance(error.code, str) else f"the script called exit({error.code})"
        return _failed(text)
    add_remedy(error)
    frames = error.__traceback__
    # Leave out the frames of this module: they do not help the author of the script.
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
        frames = frames.tb_next
    return _failed("".join(traceback.format_exception(type(error), error, frames or error.__traceback__)))


def _rewound(error: BaseException | None) -> JobRewoundError | None:
    """The rewind that ended the script, also if the script raised another exception because of it; else None."""
    while error is not None and not isinstance(error, JobRewoundError):
        error = error.__cause__ or error.__context__
    return error


def _lost(error: BaseException) -> int:
    """Print why this worker lost the job, and return the exit code."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, JobRewoundError | ClusterLostError | TransportError):
        say_last_words(text)  # the failed process says why
        return EXIT_COLLATERAL
    sys.stderr.write(f"{text}\n")
    return EXIT_AGAIN if isinstance(error, JobRewoundError) else EXIT_LOST


def _lost_loader(died: str) -> int:
    """End as a worker that was killed does: it is started again, with new loader processes."""
    sys.stderr.write(f"a loader process was killed (out of memory?), so this worker starts again: {died}\n")
    current_job.close(failed=True)
    return EXIT_LOST


def _failed(trace: str) -> int:
    say_last_words(trace)
    try:
        with contextlib.suppress(UsageError):  # the coordinator has refused this worker, and cannot be told
            current_job.fail(trace)
    finally:
        current_job.close(failed=True)
    return EXIT_SCRIPT
