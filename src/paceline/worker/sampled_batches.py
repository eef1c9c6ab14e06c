"""Batches that samplers prepare. Without an answer in time the worker prepares the batch itself: the same bits."""

from __future__ import annotations

from paceline.core.sampler.guess import NextSlots
from paceline.data.batch_source import Batch, LocalBatches, SlotKey
from paceline.data.loader import BatchMaker
from paceline.data.parcel import unpack
from paceline.data.seeding import preserved
from paceline.errors import RefusedFrameError
from paceline.messages import Ok, Refused, SlotPrepared, Warn
from paceline.telemetry import tracing
from paceline.transport.base import Received
from paceline.transport.memory.arena import Arena
from paceline.types import SlotId
from paceline.worker.session import Session

_OTHER_DATA = (
    "a sampler has other data than the workers, or other versions of the packages that prepare them ({detail}): the "
    "workers prepare these slots themselves"
)
_UNFIT = (
    "samplers cannot hand over the batches of this loop: {detail}. A batch may have tensors, numbers and texts in "
    "lists, tuples and dicts. The workers prepare these batches themselves; loader_workers=N gives each of them N "
    "processes"
)


class SampledBatches:
    """A `BatchSource`: the batches of `local`, prepared by samplers where there are any."""

    def __init__(self, local: LocalBatches, session: Session) -> None:
        self._local = local
        self._session = session
        self._link = session.samplers
        self._data: str | None = None
        self._asked: SlotKey | None = None
        self._guess = NextSlots()
        self._memory: Arena | None = None

    @property
    def maker(self) -> BatchMaker:
        """What makes the batches that this worker prepares itself."""
        return self._local.maker

    def open(self, data: str) -> None:
        """Ask samplers for batches of the data with the key `data` from now on."""
        self._data = data

    def prefetch(self, key: SlotKey) -> None:
        """See `BatchSource`: ask a sampler for the batch, or make it now if there is none."""
        if not self._ask(key):
            self._local.prefetch(key)

    def get(self, key: SlotKey) -> Batch:
        """Return the batch of `key`; see `BatchSource`."""
        if key != self._asked and not self._ask(key):
            return self._local.get(key)
        self._asked = None
        with tracing.span("wait for data", step=key.step, slot=key.slot):
            batch = self._await(key)
        if batch is not None:
            self._ask_ahead(key)
            return self._local.pinned(batch)
        with preserved(), tracing.span("make", step=key.step, slot=key.slot):
            return self._local.get(key)

    def _ask(self, key: SlotKey) -> bool:
        self._asked = None
        if self._data is None or not self._link.has_samplers or not self._link.ask(self._data, key):
            return False
        self._asked = key
        return True

    def _ask_ahead(self, key: SlotKey) -> None:
        self._guess.leased(key.segment, SlotId(key.step, key.slot))
        for slot in self._guess.ahead(1):
            if self._data is not None:
                self._link.ask_ahead(self._data, SlotKey(key.segment, *slot))

    def _await(self, key: SlotKey) -> Batch | None:
        """The batch of `key` by the samplers; None if the worker must make it."""
        link, refused = self._link, None
        while True:
            answer = link.take()
            if isinstance(answer, Received):
                try:
                    return self._open(key, answer)
                except RefusedFrameError as error:
                    answer = Refused(0, error.rule, error.detail)
            if isinstance(answer, Refused):
                if answer.rule in ("batch", "raised"):
                    self._give_up(answer)
                    return None
                refused = answer
                link.ask_next()
            elif not link.asks:
                if refused is not None and refused.rule == "data":
                    self._warn("data of samplers", _OTHER_DATA.format(detail=refused.detail))
                return None
            elif (wait_s := link.wait_s()) > 0:
                self._session.pump("grant a lease", wait_s)
            else:
                link.ask_next(late=True)

    def _open(self, key: SlotKey, answer: Received) -> Batch:
        message = answer.message
        assert isinstance(message, SlotPrepared)
        if self._memory is None:
            self._memory = Arena(share=False)
        content = unpack(message.structure, message.blocks, answer.frames, self._memory.allocate_raw)
        return Batch(content, self._local.num_samples(key))

    def _give_up(self, refused: Refused) -> None:
        """Stop asking if no batch of this loop can be handed over. What the data set raised is raised here again."""
        if refused.rule == "batch":
            self._data = None
            self._warn("batches of samplers", _UNFIT.format(detail=refused.detail))

    def _warn(self, topic: str, text: str) -> None:
        self._session.ask(lambda req: Warn(req, topic, text), Ok)

    def close(self) -> None:
        """See `BatchSource`."""
        self._asked = None
        self._link.drop()
        self._local.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
