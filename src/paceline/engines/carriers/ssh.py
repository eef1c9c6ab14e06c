"""Starts the agents of a run on other machines by the system's ``ssh``, and again if one of them ends."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.config.load import remote_paceline, ssh_command
from paceline.engines.carriers.base import Wanted, agent_words
from paceline.engines.role_runner import Note
from paceline.errors import UsageError
from paceline.orphans import die_with_parent

_AGAIN_S = 5.0
_TRIES = 5


class SshAgents:
    """One ``ssh`` for each machine. The token is written to its standard input: it is never in a command line."""

    def __init__(self, machines: Sequence[str], logs: Path) -> None:
        """`logs` is the folder for what the agents print."""
        self._address = ""
        self._token = b""
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._due = dict.fromkeys(machines, 0.0)
        self._tries = dict.fromkeys(machines, 0)

    def own_address(self) -> None:
        """See `Carrier.own_address`."""

    def begin(self, address: str, token: bytes) -> None:
        """See `Carrier.begin`."""
        self._address, self._token = address, token

    def coming(self, joined: Mapping[str, int]) -> int:
        """See `Carrier.coming`: ``--min-hosts`` says for how many machines the run waits."""
        return 0

    def tick(self, joined: Mapping[str, int], wanted: Wanted) -> list[Note]:
        """See `Carrier.tick`; returns a note for each agent that has ended.

        Raises:
            UsageError: the system has no ``ssh``.
        """
        notes = []
        for machine, process in list(self._running.items()):
            if (code := process.poll()) is None:
                self._tries[machine] = 0 if _name(machine) in joined else self._tries[machine]
                continue
            del self._running[machine]
            if code == 0:
                continue  # its host has left
            text = f"the agent on {machine} ended with exit code {code}; see {self._log(machine)}"
            if self._tries[machine] >= _TRIES:
                notes.append(Note(f"{text}. It is not started again", warning=True))
            else:
                self._due[machine] = time.monotonic() + _AGAIN_S
                notes.append(Note(f"{text}. It is started again in {_AGAIN_S:.0f} s", warning=True))
        for machine in [machine for machine, at in self._due.items() if at <= time.monotonic()]:
            del self._due[machine]
            self._start(machine)
        return notes

    def _start(self, machine: str) -> None:
        self._tries[machine] += 1
        remote = [*shlex.split(remote_paceline()), *agent_words(self._address, _name(machine))]
        command = [*shlex.split(ssh_command()), machine, shlex.join(remote)]
        try:
            with self._log(machine).open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, preexec_fn=die_with_parent
                )
        except OSError as error:
            raise UsageError(
                f"`{command[0]}` cannot be started: {error.strerror}; install it, or set PACELINE_SSH"
            ) from None
        self._running[machine] = process
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as pipe:  # it has ended: `tick` tells
            pipe.write(self._token.hex().encode() + b"\n")

    def _log(self, machine: str) -> Path:
        return self._logs / f"agent-{_name(machine)}.log"

    def close(self) -> None:
        """See `Carrier.close`. The agents end by themselves when the run has ended."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2.0)
            if process.poll() is None:
                process.kill()
                process.wait()


def _name(machine: str) -> str:
    """The name of the host: the machine without the user."""
    return machine.rpartition("@")[2]
