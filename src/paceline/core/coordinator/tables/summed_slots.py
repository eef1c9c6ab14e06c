"""How many slots of each step the servers have summed."""

from __future__ import annotations

from paceline.types import NodeId


class _Step:
    __slots__ = ("low", "summed")

    def __init__(self) -> None:
        self.low = 0
        self.summed: dict[NodeId, int] = {}


class SummedSlots:
    """For each uncommitted step, how many slots every server has summed, from the first slot on.

    Rule 4: a slot is leased only if it is less than `hold` above this number. Only `LeaseBook` changes it.
    """

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}

    def __contains__(self, step: object) -> bool:
        """Whether slots of `step` may have been leased: `low` was asked for it."""
        return step in self._steps

    def low(self, number: int) -> int:
        """How many slots of step `number` every server has summed, from the first one on. Adds an unknown step."""
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = _Step()
        return step.low

    def note(self, server: NodeId, number: int, count: int, num_servers: int) -> bool:
        """Note that a server has summed the first `count` slots; True if every server now has more than before."""
        step = self._steps.get(number)
        if step is None or count <= step.summed.get(server, 0):
            return False
        step.summed[server] = count
        low = min(step.summed.values()) if len(step.summed) == num_servers else 0
        moved, step.low = low > step.low, low
        return moved

    def forget(self, step: int) -> None:
        """Forget a step that is committed."""
        self._steps.pop(step, None)

    def drop_beyond(self, end_step: int) -> None:
        """Forget the steps from `end_step` on, which will not be computed."""
        for step in [s for s in self._steps if s >= end_step]:
            del self._steps[step]

    def clear(self) -> None:
        """Forget all steps."""
        self._steps.clear()
