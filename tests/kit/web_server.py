"""A real web server on loopback, with ranges, that can refuse or cut answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Decide = Callable[[int, str], int]
"""``f(number, path)``: the status of the answer to the request with this number, 200 for the file."""


class WebServer:
    """Serves the files of a folder. `requests` counts what was asked for with GET."""

    def __init__(self, folder: Path, decide: Decide) -> None:
        self.folder, self.decide = folder, decide
        self.requests = 0
        self.refused = 0
        self._lock = threading.Lock()

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        with self._lock:
            self.requests += 1
            status = self.decide(self.requests, handler.path)
            self.refused += status != 200
        path = self.folder / handler.path.split("?")[0].lstrip("/")
        if status == 200 and not path.is_file():
            status = 404
        if status != 200:
            handler.send_response(status)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        content, asked = path.read_bytes(), handler.headers.get("Range")
        size, start, stop = len(content), 0, len(content)
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            start, stop = int(begin), min(size, int(end) + 1 if end else size)
        handler.send_response(206 if asked else 200)
        handler.send_header("Content-Length", str(stop - start))
        handler.send_header("Accept-Ranges", "bytes")
        handler.send_header("ETag", f'"{hash(content) & 0xFFFFFFFF:x}"')
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        handler.end_headers()
        if body:
            handler.wfile.write(content[start:stop])


@contextmanager
def web_server(folder: Path, decide: Decide = lambda number, path: 200) -> Iterator[tuple[str, WebServer]]:
    """A server of `folder`: its address without a slash at the end, and what counts its requests."""
    server = WebServer(folder, decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # a thread ends with its answer

        def do_GET(self) -> None:
            server.answer(self, body=True)

        def do_HEAD(self) -> None:
            server.answer(self, body=False)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", server
        finally:
            listening.shutdown()
            thread.join()


def every_fifth(status: int = 503) -> Decide:
    """Refuse every fifth request."""
    return lambda number, path: status if number % 5 == 0 else 200
