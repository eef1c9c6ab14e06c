"""The collective reducer: a group of members reduces its parts by a library of `torch.distributed` (`libraries`).

The members find each other by a store whose content goes over the coordinator's connection. Gloo's own connections are
neither authenticated nor encrypted (see docs/threat-model.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d as c10d

from paceline.blocks.group_parts import GroupPart
from paceline.reducers.libraries import Library, choose, make_library, own_offer

logger = logging.getLogger(__name__)

_FORM_S = 10.0  # seconds that Gloo waits for the other members; the coordinator's word ends the wait before

Publish = Callable[[str, bytes], None]
"""``f(key, value)`` hands a value of the store to the other members. It may be called in any thread."""


class MeetingStore(c10d.Store):
    """The rendezvous of one group: values that this member publishes, and those that others have published."""

    def __init__(self, publish: Publish) -> None:
        super().__init__()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._news = threading.Condition()
        self._closed = False
        self._timeout = timedelta(seconds=_FORM_S)

    def put(self, key: str, value: bytes) -> None:
        """Take a value that another member has published."""
        with self._news:
            self._values[key] = value
            self._news.notify_all()

    def close(self) -> None:
        """End every wait: the group is over."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    # ------------------------------------------------------------ what Gloo calls

    def set(self, key: str, value: Any) -> None:
        """Publish a value."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self.put(key, content)
        self._publish(key, content)

    def get(self, key: str) -> bytes:
        """The value of `key`; waits for it."""
        self.wait([key], self._timeout)
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until every key has a value.

        Raises:
            RuntimeError: one has none in time, or the group is over.
        """
        limit = self._timeout if timeout is None else timeout
        with self._news:
            done = self._news.wait_for(
                lambda: self._closed or all(k in self._values for k in keys), limit.total_seconds()
            )
            if self._closed or not done:
                raise RuntimeError("the group is over" if self._closed else f"no member has sent {', '.join(keys)}")

    def check(self, keys: Sequence[str]) -> bool:
        """Whether every key has a value."""
        with self._news:
            return all(key in self._values for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits for them."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Publish several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether `multi_get` and `multi_set` may be called."""
        return True

    def clone(self) -> MeetingStore:
        """This store: it may be used in several threads."""
        return self

    @property
    def timeout(self) -> timedelta:
        """How long `get` waits."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long `get` waits."""
        self._timeout = timeout


class GlooGroup:
    """One group of members. Calls never wait, except `poll` for at most its time-out. Not thread-safe.

    `problem` is why the group cannot reduce any more; "" while it can. A group is used until `leave`; it is then freed
    by a thread of its own, since a reduction that waits for a stopped member may end only by the library's time-out.
    """

    def __init__(self, rank: int, size: int, address: str, publish: Publish) -> None:
        """Connect to the other members in the background. Gloo listens at `address`."""
        self.problem = ""
        self._rank, self._size, self._address = rank, size, address
        self._store = MeetingStore(publish)
        self._library: Library | None = None
        self._waiting: tuple[GroupPart, tuple[int, ...]] | None = None
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._freeing: threading.Thread | None = None
        if size > 1:
            threading.Thread(target=self._form, name="paceline-group", daemon=True).start()
        else:
            self._ready.set()

    def put(self, key: str, value: bytes) -> None:
        """Take a value that another member has published for the rendezvous."""
        self._store.put(key, value)

    @property
    def is_forming(self) -> bool:
        """Whether the members are not connected yet."""
        return not self._ready.is_set()

    def _form(self) -> None:
        began = time.monotonic()
        try:
            names = [f"paceline-{rank}" for rank in range(self._size)]
            self._store.set(names[self._rank], own_offer(self._address))
            device = choose(self._store.multi_get(names), self._rank)
            library = make_library(device, self._store, self._rank, self._size, self._address)
        except RuntimeError as error:
            self.problem = f"the members do not reach each other: {_first_line(error)}"
        else:
            self._library = library
            logger.debug("group of %d on %s after %.3f s", self._size, device, time.monotonic() - began)
        self._ready.set()

    # ------------------------------------------------------------ reductions

    def begin(self, part: GroupPart, roots: Sequence[int]) -> None:
        """Begin to reduce `part`; slot i, if slots are sent whole, is of rank `roots[i]`. `poll` tells the end."""
        self._waiting = part, tuple(roots)
        self._ended = threading.Event()

    def poll(self, timeout_s: float) -> bool:
        """Wait for the end of the reduction, at most `timeout_s`; True if it has ended, well or by a `problem`."""
        if self._size == 1:
            return True
        if not self._ready.wait(timeout_s) and not self.problem:
            return False
        try:
            if self.problem:
                return True
            assert self._library is not None
            if self._waiting is not None:
                (part, roots), self._waiting = self._waiting, None
                self._library.issue(part, roots, self._ended.set)
            if not self._ended.wait(timeout_s):
                return False
            self._library.check()
        except RuntimeError as error:
            self.problem = _first_line(error)
        return True

    def leave(self) -> None:
        """Leave the group. Never waits: what Gloo still does is given up, and its memory is freed later."""
        if self._freeing is None:
            self._store.close()
            self._freeing = threading.Thread(target=self._free, name="paceline-group-end", daemon=True)
            self._freeing.start()

    def close(self, timeout_s: float) -> None:
        """Leave the group, and wait until Gloo's threads have ended, at most `timeout_s`."""
        self.leave()
        if self._freeing is not None:
            self._freeing.join(timeout_s)

    def _free(self) -> None:
        self._ready.wait()
        if self._library is not None:
            self._library.free()
            self._library = None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
