"""A fork server that lends copies of itself to the tests of a file: torch is loaded once for all of them."""

from __future__ import annotations

import time

import psutil

from paceline.engines.fork_client import ForkClient, _subreaper


class _Opened(ForkClient):
    def open(self) -> None:
        if self._server is None:
            super().open()


class KeptForkServer:
    """A fork server of the tests of one file. No engine uses it: each gets a copy, which it may kill."""

    def __init__(self) -> None:
        self._client = ForkClient()
        self._client._opened = 1  # like one that replaces another, it loads what training needs at once
        self._client.open()
        deadline = time.monotonic() + 100.0
        while not self._client.ready:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def lend(self) -> ForkClient:
        """Return a client that has opened its first fork server, which is ready: a copy of this one."""
        return self._lend(ForkClient())

    def lend_opened(self) -> ForkClient:
        """The same, for those who open it themselves: it has a server, and opens none."""
        return self._lend(_Opened())

    def _lend(self, lent: ForkClient) -> ForkClient:
        self._client._next_spare = 0.0
        self._client._make_spare()
        lent._server, self._client._spare = self._client._spare, None
        assert lent._server is not None
        lent._loaded, lent._opened, lent._inherits = self._client._loaded, 1, _subreaper.begin()
        return lent

    def all_others(self) -> list[psutil.Process]:
        """The children of this process except this server, also those that have ended and were not waited for."""
        assert self._client._server is not None
        return [p for p in psutil.Process().children() if p.pid != self._client._server.pid]

    def others(self) -> list[psutil.Process]:
        """The children of this process that run, except this server."""
        return [p for p in self.all_others() if p.status() != psutil.STATUS_ZOMBIE]

    def end(self) -> None:
        """End the server."""
        self._client.close()
