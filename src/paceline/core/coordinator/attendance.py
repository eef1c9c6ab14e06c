"""Attendance: the phase that each active worker is in, and how far its script is."""

from __future__ import annotations

from paceline.core.coordinator.events import Output, WorkerJoined, WorkersGone
from paceline.core.effects import History
from paceline.messages import Position
from paceline.types import NodeId


class Attendance:
    """The phase and the progress of each worker. The progress of a script is 2n inside phase n, and 2n + 1 after it."""

    def __init__(self) -> None:
        self._phase: dict[NodeId, int] = {}
        self._count: dict[int, int] = {}
        self._progress: dict[NodeId, int] = {}

    def restore(self, history: History) -> list[Output]:
        """Do nothing: workers report their progress when they register."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: `Rewind` sends back the workers whose script is further than the job."""
        return []

    def worker_joined(self, event: WorkerJoined) -> list[Output]:
        """Note the phase that a worker reports when it registers again."""
        if event.message.progress >= 0:
            self.enter(event.node, event.message.progress // 2)
        return []

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Forget the phase and the progress of workers that are gone."""
        for worker in event.workers:
            self.leave(worker)
            self._progress.pop(worker, None)
        return []

    def ask(self, worker: NodeId, phase: int) -> None:
        """Note that `worker` asks for work in `phase`, so its script is inside that phase."""
        if phase > self._phase.get(worker, -1):
            self.enter(worker, phase)
        if 2 * phase > self._progress.get(worker, -1):
            self.advance(worker, 2 * phase)

    def enter(self, worker: NodeId, phase: int) -> bool:
        """Note that `worker` is in `phase`; False if it was in this phase or a later one before."""
        before = self._phase.get(worker, -1)
        if phase <= before:
            return False
        self._leave(before)
        self._phase[worker] = phase
        self._count[phase] = self._count.get(phase, 0) + 1
        return True

    def leave(self, worker: NodeId) -> None:
        """Note that `worker` is in no phase."""
        self._leave(self._phase.pop(worker, -1))

    def _leave(self, phase: int) -> None:
        if phase >= 0:
            self._count[phase] -= 1
            if not self._count[phase]:
                del self._count[phase]

    def lowest(self, default: int) -> int:
        """The earliest phase that some worker is in; `default` if no worker is in a phase."""
        return min(self._count, default=default)

    def advance(self, worker: NodeId, progress: int) -> None:
        """Note that the script of `worker` has made at least this `progress`."""
        if progress > self._progress.get(worker, -1):
            self._progress[worker] = progress

    def progress(self, worker: NodeId) -> int:
        """The progress of the script of `worker`; -1 before its first phase."""
        return self._progress.get(worker, -1)
