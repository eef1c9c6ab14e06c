"""The libraries of `torch.distributed` by which a group reduces: Gloo on the CPU, NCCL if each member has a GPU.

All members of a group must take the same one: each publishes what it has, and `choose` decides the same for all.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import distributed_c10d as c10d

from paceline.blocks.group_parts import GroupPart

logger = logging.getLogger(__name__)

# The stubs of torch lack parts of this.
_TYPES: Any = c10d

_REDUCE_S = 600.0  # seconds that one reduction may wait for a member; the coordinator's word ends the wait before
_LINGER_S = 5.0  # seconds between two looks whether an abandoned reduction has ended
_CPU = torch.device("cpu")

Ended = Callable[[], None]


class Library(Protocol):
    """Reduces the parts of one group, one after the other. Not thread-safe."""

    def issue(self, part: GroupPart, roots: Sequence[int], ended: Ended) -> None:
        """Begin to reduce `part`; slot i, if slots are sent whole, is of rank `roots[i]`. Never waits.

        `ended` is called in any thread when the reduction is over, well or not.

        Raises:
            RuntimeError: the group cannot reduce any more.
        """
        ...

    def check(self) -> None:
        """After the end of a reduction: raise RuntimeError if it has failed."""
        ...

    def free(self) -> None:
        """Give up what is under way, and wait until its memory is not used any more."""
        ...


# ---------------------------------------------------------------- the choice


def own_offer(host: str) -> bytes:
    """What a member on `host` has, for `choose`: the number of GPUs that NCCL can use, and the host."""
    gpus = torch.cuda.device_count() if c10d.is_nccl_available() and torch.cuda.is_available() else 0
    return f"{gpus} {host}".encode()


def choose(offers: Sequence[bytes], rank: int) -> torch.device:
    """The device of member `rank`: a GPU if each member of the group can have one of its own, otherwise the CPU.

    `offers` are those of all members, by rank. The members of a host take its GPUs in the order of their ranks.
    """
    taken: dict[str, int] = {}
    devices: list[int] = []
    for offer in offers:
        gpus, _, host = offer.decode().partition(" ")
        devices.append(taken.get(host, 0))
        taken[host] = devices[-1] + 1
        if devices[-1] >= int(gpus):
            return _CPU
    return torch.device("cuda", devices[rank])


def make_library(device: torch.device, store: c10d.Store, rank: int, size: int, address: str) -> Library:
    """Connect to the other members; Gloo listens at `address`.

    Raises:
        RuntimeError: a member cannot be reached.
    """
    return Gloo(store, rank, size, address) if device == _CPU else nccl(store, rank, size, device)


# ---------------------------------------------------------------- Gloo


class Gloo:
    """`Library` on the CPU. It reduces in place, in threads of its own."""

    def __init__(self, store: c10d.Store, rank: int, size: int, address: str) -> None:
        kind: Any = c10d.ProcessGroupGloo
        options = kind._Options()
        options._timeout = timedelta(seconds=_REDUCE_S)
        options._devices = [kind.create_device(hostname=address)]
        options._threads = 1
        self._size = size
        self._group: Any = kind(store, rank, size, options)
        self._part: GroupPart | None = None
        self._works: list[Any] = []

    def issue(self, part: GroupPart, roots: Sequence[int], ended: Ended) -> None:
        """As `Library.issue`."""
        self._part = part
        self._works, part.everyone = _begin(self._group, self._size, part.summed, part.slots, part.gathered, roots)
        done, count = list[None](), len(self._works)

        def note(_: object) -> None:  # in Gloo's thread, or here if the work has ended already; appending is atomic
            done.append(None)
            if len(done) == count:
                ended()

        # A wait of Gloo that times out costs milliseconds: it makes an error with a backtrace.
        for work in self._works:
            work.get_future().add_done_callback(note)

    def check(self) -> None:
        """As `Library.check`."""
        for work in self._works:
            work.wait()  # raises if it has failed; all have ended

    def free(self) -> None:
        """As `Library.free`. A reduction that waits for a stopped member ends only by Gloo's time-out."""
        pause_s = 0.01
        for work in self._works:
            while not work.is_completed():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LINGER_S)
        self._works, self._part, self._group = [], None, None


def _begin(
    group: Any,
    size: int,
    summed: Sequence[torch.Tensor],
    slots: Sequence[torch.Tensor],
    gathered: torch.Tensor | None,
    roots: Sequence[int],
) -> tuple[list[Any], list[torch.Tensor]]:
    """Begin the collectives of a part, in an order that is the same in all members.

    Returns them, and the memory for what each rank has `gathered`.
    """
    works = [group.allreduce([bucket], c10d.AllreduceOptions()) for bucket in summed]
    for memory, root in zip(slots, roots, strict=False):
        options = c10d.BroadcastOptions()
        options.rootRank = root
        works.append(group.broadcast([memory], options))
    everyone: list[torch.Tensor] = []
    if gathered is not None:
        everyone = [torch.empty_like(gathered) for _ in range(size)]
        works.append(group.allgather([everyone], [gathered], _TYPES.AllgatherOptions()))
    return works, everyone


# ---------------------------------------------------------------- devices


def nccl(store: c10d.Store, rank: int, size: int, device: torch.device) -> Staged:
    """The library NCCL on a GPU. It was written without a GPU to run it on (docs/methods.md says so)."""
    # By default a watchdog of torch ends the process when a member is lost; here the group ends, and the job goes on.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    kind: Any = _TYPES.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timedelta(seconds=_REDUCE_S)
    torch.cuda.set_device(device)
    group = kind(store, rank, size, options)
    return Staged(group, size, device, lambda: torch.cuda.current_stream(device).synchronize())


class Staged:
    """`Library` on a device: a part is copied to buckets there, reduced, and copied back, in a thread of its own.

    `settle` waits for what the thread has begun on the device.
    """

    def __init__(self, group: Any, size: int, device: torch.device, settle: Callable[[], None]) -> None:
        self._group = group
        self._size = size
        self._device = device
        self._settle = settle
        self._error: RuntimeError | None = None
        self._memory: dict[tuple[str, int], torch.Tensor] = {}
        self._jobs: queue.SimpleQueue[tuple[GroupPart, Sequence[int], Ended] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="paceline-device", daemon=True)
        self._thread.start()

    def issue(self, part: GroupPart, roots: Sequence[int], ended: Ended) -> None:
        """As `Library.issue`."""
        self._jobs.put((part, roots, ended))

    def check(self) -> None:
        """As `Library.check`."""
        if self._error is not None:
            raise self._error

    def free(self) -> None:
        """As `Library.free`."""
        self._group.abort()  # ends what waits for a member that is lost
        self._jobs.put(None)
        self._thread.join()
        self._memory.clear()

    def _work(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (job := self._jobs.get()) is not None:
            part, roots, ended = job
            try:
                if self._error is None:
                    self._reduce(part, roots)
            except RuntimeError as error:
                self._error = error
            ended()

    def _reduce(self, part: GroupPart, roots: Sequence[int]) -> None:
        summed = [self._copy("summed", n, bucket) for n, bucket in enumerate(part.summed)]
        slots = [self._copy("slots", n, memory) for n, memory in enumerate(part.slots)]
        gathered = None if part.gathered is None else self._copy("gathered", 0, part.gathered)
        works, everyone = _begin(self._group, self._size, summed, slots, gathered, roots)
        for work in works:
            work.wait()
        self._settle()
        for here, there in zip([*part.summed, *part.slots], [*summed, *slots], strict=True):
            here.copy_(there)
        part.everyone = [memory.to(_CPU, copy=True) for memory in everyone]

    def _copy(self, what: str, number: int, memory: torch.Tensor) -> torch.Tensor:
        """A copy of `memory` on the device, in memory that is used again."""
        known = self._memory.get((what, number))
        if known is None or known.shape != memory.shape or known.dtype != memory.dtype:
            known = self._memory[what, number] = torch.empty_like(memory, device=self._device)
        return known.copy_(memory)
