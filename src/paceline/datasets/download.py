"""Downloads the files of a published data set (a `Release`) over https."""

from __future__ import annotations

import math
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.datasets.idx_files import ProviderError, Release

if TYPE_CHECKING:
    from http.client import HTTPResponse

DOWNLOAD_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"

_OPEN_TIMEOUT_S = 4.0
_READ_TIMEOUT_S = 10.0
_DOWNLOAD_TIMEOUT_S = 300.0


def download(release: Release, into: Path) -> None:
    """Download the files of `release` into the empty directory `into`.

    Raises:
        ProviderError: a file could not be fetched in time, or is too large.
    """
    from http.client import HTTPException

    deadline = time.monotonic() + _DOWNLOAD_TIMEOUT_S
    for file in release.files(None):
        limit = math.prod(file.shape) + 65_536  # bytes; a gzip file is hardly larger than its content
        try:
            with _open_url(f"{DOWNLOAD_URL}/{file.name}") as response, (into / file.name).open("wb") as out:
                while chunk := response.read1(1 << 20):
                    out.write(chunk)
                    if out.tell() > limit:
                        raise ProviderError(f"{file.name} is larger than {limit} bytes, so it is not the right file")
                    if time.monotonic() > deadline:
                        raise ProviderError(f"the download did not end within {_DOWNLOAD_TIMEOUT_S:.0f} s")
        except (OSError, HTTPException) as error:
            raise ProviderError(f"{file.name}: {error}") from None


def _open_url(url: str) -> HTTPResponse:
    """Open `url`, within `_OPEN_TIMEOUT_S` seconds.

    The time-out of a socket is per address and does not include the name look-up, so another thread opens the URL. If
    that thread is late, the caller does not wait for it; it closes the connection itself.
    """
    import urllib.request  # imported here, because it imports ssl and http, which a cached data set does not need

    opened: queue.SimpleQueue[HTTPResponse | Exception] = queue.SimpleQueue()
    late = threading.Event()

    def work() -> None:
        try:
            response: HTTPResponse = urllib.request.urlopen(url, timeout=_READ_TIMEOUT_S)
        except Exception as error:  # the caller raises it
            opened.put(error)
            return
        opened.put(response)
        if late.is_set():
            response.close()

    threading.Thread(target=work, name="paceline-download", daemon=True).start()
    try:
        result = opened.get(timeout=_OPEN_TIMEOUT_S)
    except queue.Empty:
        late.set()
        raise ProviderError(f"the web server did not answer within {_OPEN_TIMEOUT_S:.0f} s") from None
    if isinstance(result, Exception):
        raise result
    return result
