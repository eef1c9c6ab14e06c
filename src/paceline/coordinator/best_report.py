"""What the status and the summary say about the best version, and about the reason why the job ended."""

from __future__ import annotations

from paceline.coordinator.json_numbers import plain
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.messages.status import BestStatus

ALL_DONE = "the script's loops are done"


def best_of(core: CoordinatorCore) -> BestStatus | None:
    """The best version that has a checkpoint; None without --best, or before a version was validated and kept."""
    checkpoints = core.machines.checkpoints
    ranked = checkpoints.kept.ranked()
    if not ranked:
        return None
    checkpoint, value = ranked[0]
    shown = plain({"value": value})["value"]
    return BestStatus(checkpoints.kept.metric, shown, checkpoint.position.version, checkpoint.folder)


def stop_reason(core: CoordinatorCore, *, going_on: bool) -> str | None:
    """Why the job ended; None while there is work to do."""
    if core.failure is not None:
        return f"failed: {core.failure.reason}"
    if core.machines.segments.stop_reason is not None and not going_on:
        return core.machines.segments.stop_reason
    return None if going_on else ALL_DONE
