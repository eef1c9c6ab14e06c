"""The exit codes of the processes of a run. They tell an engine which processes to start again."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_SCRIPT = 1
"""The script failed, or another role by an exception. It is not started again.

A worker that had joined the job has told the coordinator.
"""

EXIT_USAGE = 2
EXIT_LOST = 3
"""The process has lost its connection to the job."""

EXIT_COLLATERAL = 4
"""This worker ended because the job failed in another process, which has the traceback."""

EXIT_AGAIN = 5
"""The job was rewound to a point before this worker's loop: the script must be started again."""

EXIT_LEFT = 6
"""This worker was asked to leave (SIGTERM) and has handed its slot back."""

EXIT_LOG = 7
"""This coordinator cannot read or write the log of the run. The last line that it printed names the file and the cause.
It is not started again."""

EXIT_DEPOSED = 8
"""Another run has taken over the checkpoints of this one: the coordinator and the launcher end, and nothing is started
again."""

EXIT_INTERRUPTED = 130
EXIT_CLOSED = 141
EXIT_TERMINATED = 143
"""A launcher got Ctrl-C (130) or SIGTERM (143), or the reader of its output has closed it (141, as for a process that
SIGPIPE ends). Its run can be resumed."""


HOST_LOST = -256
"""Stands for the exit code of a process whose host was lost. No process ends with it: it is the number of no signal."""


def how(code: int) -> str:
    """Describe an exit code. A negative one is the number of the signal that ended the process."""
    if code == HOST_LOST:
        return "its host was lost"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
