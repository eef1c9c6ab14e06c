"""A coordinator and a server in the worker's own thread: `python train.py` starts no other process."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.coordinator.service import CoordinatorService
from paceline.coordinator.status import describe
from paceline.coordinator.store import LogStore
from paceline.messages import Finish, Register, Summary
from paceline.runtime.rundir import RunDir
from paceline.runtime.service_loop import node_id, pump
from paceline.server.service import ServerService
from paceline.transport.base import Received
from paceline.transport.inproc import InprocHub

_LINE_S = 5.0  # seconds between two lines of progress


class EmbeddedCluster:
    """A coordinator and a server, connected by one hub. They run while the worker waits for a message."""

    def __init__(self, path: Path | None, spec: ClusterSpec) -> None:
        self.hub = InprocHub()
        self.run = RunDir.create(path) if path is not None else None
        self._held = ExitStack()
        if self.run is not None:
            self._held.enter_context(self.run.launching())  # so that `paceline runs --prune` does not remove it
        log = LogStore(self.run.log_file if self.run is not None else Path(":memory:"))
        self._log = log
        front = self.hub.port(node_id("coordinator", 1), listen="coordinator")
        name = "" if path is None else str(path)
        self.coordinator = CoordinatorService(front, spec, log, run=name)
        back = self.hub.port(node_id("server-0", 1), listen="server-0")
        intro = Register(1, "server", "server-0", 1, socket.gethostname(), back.address)
        self.server = ServerService(back, intro)
        assert front.address is not None
        self.address = front.address
        back.connect(front.address)
        self._ports = [front, back]
        self._next_line = 0.0
        self.hub.add_pump(lambda: pump(self.coordinator, front))
        self.hub.add_pump(lambda: pump(self.server, back))
        self.hub.add_pump(self._tick)

    def _tick(self) -> bool:
        now = time.monotonic()
        self.server.on_tick(now)
        self.coordinator.on_tick(now)
        if now >= self._next_line and self.coordinator.core.schedule.segments:
            status = self.coordinator.status(now)
            first = self._next_line == 0.0
            self._next_line = now + _LINE_S
            sys.stderr.write(f"{status.headline if first else describe(status)}\n")
        return False

    def close(self, *, failed: bool) -> None:
        """End both roles. If there is a run directory and the job has not failed, write the summary to it."""
        if not failed and self.coordinator.core.schedule.segments:
            sys.stderr.write(f"{describe(self.coordinator.status(time.monotonic()))}\n")
        if self.run is not None and not failed:
            port = self.hub.port(f"observer/{secrets.token_hex(4)}")
            port.connect(self.address)
            summary = None
            deadline = time.monotonic() + 30.0
            asked = False
            while summary is None and time.monotonic() < deadline:
                event = port.recv(0.05)
                if not asked and event is not None:
                    port.send(self._ports[0].node, Finish(1))
                    asked = True
                if isinstance(event, Received) and isinstance(event.message, Summary):
                    summary = msgspec.json.decode(event.message.json)
            port.close()
            if summary is not None:
                self.run.summary_file.write_text(json.dumps(summary, indent=2) + "\n")
        for opened in self._ports:
            opened.close()
        self._log.close()
        self._held.close()
