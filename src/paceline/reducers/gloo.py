"""The collective reducer: a group of members reduces its parts by Gloo, the CPU library of `torch.distributed`.

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

import torch
from torch.distributed import distributed_c10d as c10d

from paceline.blocks.group_parts import GroupPart

logger = logging.getLogger(__name__)

# The stubs of torch lack parts of these.
_TYPES: Any = c10d
_LIBRARY: Any = c10d.ProcessGroupGloo

_FORM_S = 60.0  # seconds that Gloo waits for the other members; the coordinator's word ends the wait before
_REDUCE_S = 600.0  # seconds that one reduction may wait for a member; the coordinator's word ends the wait before
_LINGER_S = 5.0  # seconds between two looks whether an abandoned reduction has ended

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
    by a thread of its own, since a reduction that waits for a stopped member ends only by Gloo's time-out.
    """

    def __init__(self, rank: int, size: int, address: str, publish: Publish) -> None:
        """Connect to the other members in the background. Gloo listens at `address`."""
        self.problem = ""
        self._rank, self._size, self._address = rank, size, address
        self._store = MeetingStore(publish)
        self._group: Any = None
        self._part: GroupPart | None = None
        self._works: list[Any] = []
        self._roots: tuple[int, ...] = ()
        self._begun = False
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
            options = _LIBRARY._Options()
            options._timeout = timedelta(seconds=_REDUCE_S)
            options._devices = [_LIBRARY.create_device(hostname=self._address)]
            options._threads = 1
            group = _LIBRARY(self._store, self._rank, self._size, options)
        except RuntimeError as error:
            self.problem = f"the members do not reach each other: {_first_line(error)}"
        else:
            self._group = group
            logger.debug("group of %d after %.3f s", self._size, time.monotonic() - began)
        self._ready.set()

    # ------------------------------------------------------------ reductions

    def begin(self, part: GroupPart, roots: Sequence[int]) -> None:
        """Begin to reduce `part`; slot i, if slots are sent whole, is of rank `roots[i]`. `poll` tells the end."""
        self._part = part
        self._works = []
        self._roots = tuple(roots)
        self._begun = False
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
            if not self._begun:
                self._begun = True
                self._issue()
            if not self._ended.wait(timeout_s):
                return False
            for work in self._works:
                work.wait()  # raises if it has failed; all have ended
        except RuntimeError as error:
            self.problem = _first_line(error)
        return True

    def _issue(self) -> None:
        group, part = self._group, self._part
        assert group is not None
        assert part is not None
        for bucket in part.summed:
            self._works.append(group.allreduce([bucket], c10d.AllreduceOptions()))
        for memory, root in zip(part.slots, self._roots, strict=False):
            options = c10d.BroadcastOptions()
            options.rootRank = root
            self._works.append(group.broadcast([memory], options))
        if part.gathered is not None:
            part.everyone = [torch.empty_like(part.gathered) for _ in range(self._size)]
            self._works.append(group.allgather([part.everyone], [part.gathered], _TYPES.AllgatherOptions()))
        ended, done, count = self._ended, list[None](), len(self._works)

        def note(_: object) -> None:  # in Gloo's thread, or here if the work has ended already; appending is atomic
            done.append(None)
            if len(done) == count:
                ended.set()

        # A wait of Gloo that times out costs milliseconds: it makes an error with a backtrace.
        for work in self._works:
            work.get_future().add_done_callback(note)

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
        pause_s = 0.01
        for work in self._works:
            while not work.is_completed():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LINGER_S)
        self._works, self._part, self._group = [], None, None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
