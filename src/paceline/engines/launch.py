"""``paceline.launch``: starts a run from a program or a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from paceline.config.load import RUN, run_dir
from paceline.config.system import require_linux
from paceline.engines.driver_screen import ALL, DriverScreen
from paceline.engines.launched_run import Run
from paceline.engines.run_options import File, RunOptions, in_python
from paceline.engines.run_request import request_run
from paceline.engines.stop_requests import StopRequests
from paceline.errors import UsageError


def launch(
    script: File | None = None, *, args: Sequence[object] = (), show: str = ALL, **options: Unpack[RunOptions]
) -> Run:
    """Start a run of `script` with the arguments `args`, and return a handle to it at once.

    `options` are those of `paceline run`, with underscores: ``workers=4``, ``servers="per-host"``,
    ``checkpoint_every="30s"``, ``engine="hosts"``, ``resume=RUN``. Relative paths begin in the directory of this call.
    `show` says what is printed here: ``all``; ``progress``, without what the processes print; or ``none``.

    Raises:
        UsageError: an option does not exist or does not fit, or its value is not allowed; nothing was started. Also in
            a script that Paceline runs.
        PacelineError: a checkpoint or the place of checkpoints cannot be used; nothing was started.
    """
    require_linux()
    if (mine := run_dir()) is not None:
        raise UsageError(
            f"paceline.launch: this process belongs to the run in {mine} ({RUN} is set), and a run cannot start "
            "another one. Call it in a program that Paceline does not run"
        )
    stop = StopRequests()
    try:
        screen = DriverScreen(show)
        request = request_run(None if script is None else Path(script), args, options).pinned()
        return Run(lambda: request.supervisor(screen, stop), stop)
    except UsageError as error:
        if type(error) is not UsageError:
            raise
        raise UsageError(in_python(str(error))) from None
