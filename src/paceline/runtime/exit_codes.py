"""Exit codes of the processes of a run. By them an engine decides which processes it starts again."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_SCRIPT = 1
"""The script failed, and the coordinator knows it if the worker had joined. Never retried."""

EXIT_USAGE = 2
EXIT_LOST = 3
"""A peer that this process needs is gone."""

EXIT_COLLATERAL = 4
"""This worker ended because the job failed in another process, which has the traceback."""

EXIT_AGAIN = 5
"""The job was rewound to before this worker's loop: start the script again."""

EXIT_LEFT = 6
"""This worker was told to leave (SIGTERM) and has given back its leases."""

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
"""A launcher got Ctrl-C or SIGTERM; its run can be resumed."""


def how(code: int) -> str:
    """The exit code in words; a negative one is a signal."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
