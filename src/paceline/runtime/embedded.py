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
from paceline.coordinator.summary_text import summary_lines
from paceline.messages import Finish, Register, Summary
from paceline.messages.status import RunSummary
from paceline.runtime.rundir import RunDir, finish_run
from paceline.runtime.service_loop import pump
from paceline.runtime.starts import node_id
from paceline.server.service import ServerService
from paceline.transport.base import Received
from paceline.transport.inproc import InprocHub

_LINE_S = 5.0  # seconds between two lines of progress
_SUMMARY_S = 30.0  # seconds that the end of the job waits for its summary


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
        self._warned = 0
        self.hub.add_pump(lambda: pump(self.coordinator, front))
        self.hub.add_pump(lambda: pump(self.server, back))
        self.hub.add_pump(self._tick)

    def _tick(self) -> bool:
        now = time.monotonic()
        self.server.on_tick(now)
        self.coordinator.on_tick(now)
        self._warn()
        if now >= self._next_line and self.coordinator.core.schedule.segments:
            status = self.coordinator.status(now)
            first = self._next_line == 0.0
            self._next_line = now + _LINE_S
            sys.stderr.write(f"{status.headline if first else describe(status)}\n")
        return False

    def _warn(self) -> None:
        texts = self.coordinator.core.machines.warnings.texts
        if len(texts) > self._warned:
            for text in list(texts.values())[self._warned :]:
                sys.stderr.write(f"warning: {text}\n")
            self._warned = len(texts)

    def close(self, *, failed: bool, interrupted: bool = False) -> None:
        """End both roles. If the job has not failed, print the summary, and write it to the run directory if any.

        If it was `interrupted` by Ctrl-C, say that its steps are lost, and how they are not lost the next time. Results
        go to standard output, all else goes to standard error. Nothing is printed if nothing was trained.
        """
        if interrupted:
            self._catch_up()
        self._warn()
        if not failed:
            self._summarize()
        elif interrupted and self.coordinator.core.version > 0:
            sys.stderr.write(
                f"interrupted at step {self.coordinator.core.watermark.low}: its steps are lost, since a job in one "
                f"process makes no checkpoints. `paceline run -w 1 {sys.argv[0]}` makes them, and can be resumed after "
                "Ctrl-C\n"
            )
        for opened in self._ports:
            opened.close()
        self._log.close()
        self._held.close()

    def _catch_up(self) -> None:
        """Handle what the worker has sent: the script may be a step ahead of the log."""
        front, back = self._ports
        while pump(self.server, back) or pump(self.coordinator, front):
            pass

    def _summarize(self) -> None:
        trained = bool(self.coordinator.core.schedule.segments)
        if trained:
            sys.stderr.write(f"{describe(self.coordinator.status(time.monotonic()))}\n")
            sys.stderr.flush()
        if (not trained and self.run is None) or (summary := self._ask_summary()) is None:
            return
        if self.run is not None:
            finish_run(self.run, json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
        if trained:
            sys.stdout.write("\n".join(summary_lines(summary)) + "\n")
            sys.stdout.flush()

    def _ask_summary(self) -> RunSummary | None:
        """Ask the coordinator for the summary, which has the digest; None if it does not come in time."""
        port = self.hub.port(f"observer/{secrets.token_hex(4)}")
        port.connect(self.address)
        deadline = time.monotonic() + _SUMMARY_S
        asked = False
        try:
            while time.monotonic() < deadline:
                event = port.recv(0.05)
                if not asked and event is not None:
                    port.send(self._ports[0].node, Finish(1))
                    asked = True
                if isinstance(event, Received) and isinstance(event.message, Summary):
                    return msgspec.json.decode(event.message.json, type=RunSummary)
        finally:
            port.close()
        return None
