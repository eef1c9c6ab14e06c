"""The agent of a host as a child of the process that a cluster's engine has started there."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from paceline.orphans import die_with_parent

_LAST_LINES = 20
# The engine may kill its own children at once. The shell between lets the agent see that end, and remove its folder.
_SHELL = ("sh", "-c", '"$@" --parent $$; exit $?', "sh")


class CarriedAgent:
    """Runs ``paceline WORDS`` until it ends. It ends when this process ends, for whatever reason.

    The token goes to its standard input. Its environment is `env`: without what the engine sets for its own work, such
    as OMP_NUM_THREADS, since the threads of each role are decided by the run.
    """

    def __init__(self, words: Sequence[str], token: str, env: Mapping[str, str]) -> None:
        self._command = [*_SHELL, sys.executable, "-m", "paceline", *words]
        self._token = token
        self._env = dict(env)
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._code = 0
        self._ended = threading.Event()
        # The kernel ends a child with the thread that forked it: this one lives until the child has ended.
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> tuple[int, str] | None:
        """Wait until the agent has ended; returns its exit code and its last lines, None if it still runs."""
        return (self._code, "\n".join(self._lines)) if self._ended.wait(timeout_s) else None

    def _run(self) -> None:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin as pipe:
                pipe.write(f"{self._token}\n".encode())
            with process.stdout as lines:
                for line in lines:
                    self._lines.append(line.decode(errors="replace").rstrip())
            self._code = process.wait()
        except OSError as error:
            self._code = -1
            self._lines.append(f"the agent cannot be started: {error}")
        finally:
            self._ended.set()
