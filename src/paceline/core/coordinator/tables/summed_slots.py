"""How many slots of each step the servers have summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.types import NodeId


@dataclass(slots=True)
class _Step:
    num_slots: int
    low: int = 0
    summed: dict[NodeId, int] = field(default_factory=dict)


class SummedSlots:
    """Of each step that is not committed: how many slots, from the first on, every server has summed.

    Rule 4: slots are leased within `hold` of that. Only `LeaseBook` changes it.
    """

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}

    def __contains__(self, step: object) -> bool:
        """Whether slots of `step` have been leased."""
        return step in self._steps

    def low(self, number: int, num_slots: Callable[[int], int]) -> int:
        """How many slots of a step every server has summed; the step is known from now on."""
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = _Step(num_slots(number))
        return step.low

    def note(self, server: NodeId, number: int, count: int, num_servers: int) -> bool:
        """A server has summed the first `count` slots of a step; True if every server has summed more than before."""
        step = self._steps.get(number)
        if step is None or count <= step.summed.get(server, 0):
            return False
        step.summed[server] = count
        low = min(step.summed.values()) if len(step.summed) == num_servers else 0
        moved, step.low = low > step.low, low
        return moved

    def forget(self, step: int) -> None:
        """The step is committed."""
        self._steps.pop(step, None)

    def drop_beyond(self, end_step: int) -> None:
        """Steps from `end_step` on will not be computed."""
        for step in [s for s in self._steps if s >= end_step]:
            del self._steps[step]

    def clear(self) -> None:
        """No step has been leased."""
        self._steps.clear()
