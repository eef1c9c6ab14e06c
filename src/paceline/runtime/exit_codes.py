"""The exit codes of the processes of a run. They tell an engine which processes to start again."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_SCRIPT = 1
"""The script failed; a worker that had joined the job has told the coordinator. It is not started again."""

EXIT_USAGE = 2
EXIT_LOST = 3
"""The process has lost its connection to the job."""

EXIT_COLLATERAL = 4
"""This worker ended because the job failed in another process, which has the traceback."""

EXIT_AGAIN = 5
"""The job was rewound to a point before this worker's loop: the script must be started again."""

EXIT_LEFT = 6
"""This worker was asked to leave (SIGTERM) and has handed its slot back."""

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
"""A launcher got Ctrl-C (130) or SIGTERM (143). Its run can be resumed."""


def how(code: int) -> str:
    """Describe an exit code. A negative one is the number of the signal that ended the process."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
