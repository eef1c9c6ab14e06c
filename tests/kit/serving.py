"""`paceline serve` for tests: a server in a process of its own, and a client of a few lines."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.real_runs import PACELINE, Background, background

READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The status, the headers (in lower case) and the body of an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Server:
    """A server on loopback."""

    port: int
    started: Background

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            content = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request(method, path, content, {k.replace("_", "-"): v for k, v in headers.items()})  # type: ignore[arg-type]
            answer = connection.getresponse()
            found = {key.lower(): value for key, value in answer.getheaders()}
            return Answered(answer.status, found, answer.read())
        finally:
            connection.close()

    def until_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until every model can answer."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.started.process.poll() is None:
            try:
                if self.ask("GET", "/v2/health/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.started.process.kill()
        raise AssertionError(f"the server was never ready:\n{self.started.wait().out}")

    def end(self) -> str:
        """End the server by SIGTERM; it must drain and exit with 0. Returns what it printed."""
        self.started.process.send_signal(signal.SIGTERM)
        return self.started.wait(20.0).check().out


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(cwd: Path, *words: object, **env: str) -> Iterator[Server]:
    """Start `paceline serve` in `cwd`, on a free port."""
    port = free_port()
    command: Sequence[object] = [*PACELINE, "serve", "--port", port, *words]
    with background(command, cwd, **env) as started:
        yield Server(port, started)


def tensor(name: str, shape: Sequence[int], data: Sequence[Any], datatype: str = "FP32") -> dict[str, Any]:
    """A request with one input."""
    return {"inputs": [{"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}]}
