"""An observer of the run in a run directory; its errors name the files of that directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.clients.observer import Observer
from paceline.errors import AuthenticationError
from paceline.runtime.rundir import RunDir


@contextmanager
def observing(run: RunDir) -> Iterator[Observer]:
    """Open an observer of `run`, and close it after the block.

    A request of the observer raises DeadlineError if no coordinator answers in time.

    Raises:
        UsageError: the directory has no token.
        AuthenticationError: the process at the address of the coordinator has another token than the directory.
    """
    observer = Observer(run.coordinator, run.token())
    try:
        yield observer
    except AuthenticationError as error:
        raise AuthenticationError(
            f"the token of {run.token_file} was refused ({error}). Either that file is not the run's token: use the "
            "directory in which the run was started, or copy its token again. Or the run has ended, and another run "
            "listens there now"
        ) from None
    finally:
        observer.close()
