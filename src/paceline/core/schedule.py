"""All segments of a job: which samples, slots and window each step has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from paceline.core.sampling import SampleRange, full_steps, sample_range
from paceline.types import INIT_STEP, Segment

_NO_STEP = 1 << 62  # a step that no job reaches
_REMEMBERED = 1024  # the places of this many steps are cached, because each is read several times per slot


class Schedule:
    """Segments in the order of their first step. Only `append` changes it; `revision` counts these changes."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments: list[Segment] = []
        self.revision = 0
        self._starts: list[int] = []
        self._places: dict[int, SampleRange] = {}
        self._last_start = _NO_STEP
        self._full = (0, 0, 0)  # the steps from the first number to before the second have this many slots
        for segment in segments:
            self.append(segment)

    def append(self, segment: Segment) -> None:
        """Add a segment, which defines all steps from `segment.step` on. Removes segments that begin later."""
        while self._starts and self._starts[-1] > segment.step:
            self.segments.pop()
            self._starts.pop()
        self.segments.append(segment)
        self._starts.append(segment.step)
        self.revision += 1
        self._places.clear()
        self._last_start = segment.step
        self._full = (0, 0, 0)

    @property
    def end_step(self) -> int:
        """The first step that no segment covers."""
        return self.segments[-1].end_step if self.segments else 0

    def covers(self, step: int) -> bool:
        """Whether a segment says what `step` consists of."""
        return step == INIT_STEP or 0 <= step < self.end_step

    def segment(self, step: int) -> Segment:
        """The segment that defines `step`."""
        if step >= self._last_start:
            return self.segments[-1]
        return self.segments[bisect_right(self._starts, step) - 1]

    def place(self, step: int) -> SampleRange:
        """The samples of `step`: its epoch, and its first position there."""
        found = self._places.get(step)
        if found is None:
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            found = self._places[step] = sample_range(self.segment(step), step)
        return found

    def num_slots(self, step: int) -> int:
        """How many slots the step has. The last step of an epoch may have fewer than the `slots` dial says."""
        first, end, slots = self._full
        return slots if first <= step < end else self._num_slots(step)

    def _num_slots(self, step: int) -> int:
        """The number of slots of a step, which decides for the full steps around it, too."""
        if step == INIT_STEP:
            return 1
        slots = self.place(step).slots
        if step >= self._last_start:
            first, end = full_steps(self.segments[-1], step)
            if first < end:
                self._full = (first, end, slots)
        return slots

    def window(self, step: int) -> int:
        """The window of the step."""
        if step >= self._last_start:
            return self.segments[-1].window
        return 0 if step == INIT_STEP else self.segment(step).window
