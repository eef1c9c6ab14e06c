"""The hosts that carry roles of a run, in its directory: a launcher that adopts the run waits for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from paceline.core.hosts.host_table import Host
from paceline.errors import StateError
from paceline.runtime.rundir import RunDir, replace_file


class KnownHosts:
    """The file with the names of the hosts."""

    def __init__(self, run: RunDir) -> None:
        self._file = run.path / "hosts.json"

    def write(self, hosts: Mapping[str, Host]) -> None:
        """Write the names of the hosts that carry roles. If the disk is full, the run goes on without the file."""
        carrying = sorted(name for name, host in hosts.items() if host.roles)
        with suppress(StateError):
            replace_file(self._file, json.dumps(carrying))

    def read(self) -> frozenset[str]:
        """The names that were written last; none if there is no file."""
        try:
            return frozenset(json.loads(self._file.read_text()))
        except (OSError, ValueError):
            return frozenset()
