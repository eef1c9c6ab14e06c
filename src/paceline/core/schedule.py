"""All segments of a job: which samples, slots and window each step has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from paceline.config.dials import ALLREDUCE
from paceline.core.sampling import Order, SampleRange, full_steps, sample_range
from paceline.types import INIT_STEP, Segment, SlotId

_NO_STEP = 1 << 62  # a step that no job reaches
_REMEMBERED = 1024  # the places of this many steps are cached, because each is read several times per slot


class Schedule:
    """Segments in the order of their first step. Only `append` changes it."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments: list[Segment] = []
        self._barriers: list[int] = []
        self._last_barrier = 0
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
            self._barriers.pop()
        # A segment that begins at the same step has no steps of its own any more.
        before = next((other for other in reversed(self.segments) if other.step < segment.step), None)
        # In lock-step a step waits for the one before it anyway, and may be leased while that is not committed. But the
        # blocks move to another reducer between two steps.
        follows = before is None or (before.window == 0 and _in_group(before) == _in_group(segment))
        in_lock_step = segment.window == 0 and follows
        self.segments.append(segment)
        self._starts.append(segment.step)
        self._last_barrier = 0 if in_lock_step else segment.step
        self._barriers.append(self._last_barrier)
        self._places.clear()
        self._last_start = segment.step
        self._full = (0, 0, 0)

    @property
    def end_step(self) -> int:
        """The first step that no segment covers."""
        return self.segments[-1].end_step if self.segments else 0

    @property
    def revision(self) -> int:
        """The number of the plan: higher than the revisions of all its segments; 0 if it has none."""
        return 1 + max(segment.revision for segment in self.segments) if self.segments else 0

    def revision_of(self, step: int) -> int:
        """The revision of the segment that defines `step`: attempts by another revision are void (rule 19)."""
        if step >= self._last_start:
            return self.segments[-1].revision
        return 0 if step == INIT_STEP else self.segment(step).revision

    def barrier(self, step: int) -> int:
        """The step below which every step is committed before `step` is leased.

        A segment with a window, or after one with a window, begins when all steps before it are committed: versions of
        lock-step are numbered by steps, so no step of another mode may be committed among its own. So does a segment
        with another reducer than the one before: the blocks move then.
        """
        if step >= self._last_start:
            return self._last_barrier
        return 0 if step == INIT_STEP else self._barriers[bisect_right(self._starts, step) - 1]

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
        slots, index = self.place(step).slots, bisect_right(self._starts, step) - 1
        first, end = full_steps(self.segments[index], step)
        if index + 1 < len(self._starts):
            end = min(end, self._starts[index + 1])
        if first < end:
            self._full = (first, end, slots)
        return slots

    def slots_between(self, step: int, end: int, most: int) -> int:
        """How many slots the steps from `step` to before `end` have; if there are more than `most`, some such number.

        Looks once at each run of full steps.
        """
        count = 0
        while step < end and count <= most:
            slots = self.num_slots(step)
            first, after, _ = self._full
            stop = min(end, after) if first <= step < after else step + 1
            count += slots * (stop - step)
            step = stop
        return count

    def known_samples(self, slot: SlotId, seed: int) -> tuple[int, ...]:
        """The samples of `slot`, as indices into the data of its loop, in the order in which they are read.

        () if they are drawn by weight: only workers have the weights.
        """
        if slot.step == INIT_STEP or (segment := self.segment(slot.step)).weights:
            return ()
        return tuple(Order(seed).samples(segment, slot.step, slot.slot).tolist())

    def window(self, step: int) -> int:
        """The window of the step."""
        if step >= self._last_start:
            return self.segments[-1].window
        return 0 if step == INIT_STEP else self.segment(step).window


def _in_group(segment: Segment) -> bool:
    return segment.mode == ALLREDUCE
