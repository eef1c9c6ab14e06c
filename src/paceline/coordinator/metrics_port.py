"""Serves the metrics of a run by HTTP, in a thread: a slow or broken reader never reaches the coordinator's loop."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from paceline.coordinator.metrics_text import CONTENT_TYPE, metrics_text
from paceline.errors import UsageError
from paceline.messages.status import Status

EVERY_S = 1.0
"""How often the coordinator publishes its status."""


class MetricsPort:
    """Listens at a port of one address; port 0 is any free one. `publish` replaces what readers get."""

    def __init__(self, host: str, port: int) -> None:
        """Begin to listen.

        Raises:
            UsageError: another process has the port.
        """
        self._text = b""
        published = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0

            def do_GET(self) -> None:
                """Answer with the metrics, at /metrics alone."""
                known = self.path.partition("?")[0] in ("/metrics", "/")
                text = published._text if known else b"the metrics are at /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a reader asks every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise UsageError(f"--metrics-port {port}: cannot listen at {host}: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="paceline-metrics", daemon=True)
        self._thread.start()

    def publish(self, status: Status) -> None:
        """Let readers get the metrics of `status`."""
        self._text = metrics_text(status).encode()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
