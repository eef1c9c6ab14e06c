"""How a process of a run ends, in one number. Engines decide by it who is started again."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_SCRIPT = 1
"""The script failed; the job has heard of it. Never retried."""

EXIT_USAGE = 2
EXIT_LOST = 3
"""A peer that this process cannot do without is gone."""

EXIT_COLLATERAL = 4
"""This worker ended because the job failed elsewhere: whoever failed first has the traceback."""

EXIT_AGAIN = 5
"""The job went back to before this worker's place in the script: start the script again."""

EXIT_LEFT = 6
"""Told to leave (SIGTERM), this worker has handed back what it held."""

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
"""Ctrl-C and SIGTERM: of a launcher, whose run can be resumed."""


def how(code: int) -> str:
    """In words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
