"""Calls and replies: a request and its answer without HTTP. A router passes them on; it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from paceline.core.predict.batching import retry_after
from paceline.errors import RequestError
from paceline.predict.protocol import JSON, error_body


class Call(NamedTuple):
    """A request that was admitted and read. `header_length` is the header of the binary tensor extension."""

    method: str
    path: str
    body: bytes = b""
    header_length: str | None = None


class Reply(NamedTuple):
    """The answer to a call."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


def refusal(error: RequestError) -> Reply:
    """The answer to a request that is refused: the protocol's error object."""
    headers = {"content-type": JSON}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(retry_after(error.retry_after_s))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Reply(error.status, error_body(error.why), headers)


def json_reply(content: Any, status: int = 200) -> Reply:
    """An answer in JSON."""
    return Reply(status, msgspec.json.encode(content), {"content-type": JSON})


PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
"""The files of the page, by path. They say nothing about the models."""
