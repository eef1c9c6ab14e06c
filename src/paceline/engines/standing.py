"""Reads where a run stands after its processes have ended: from its log and its checkpoints, not from a last status."""

from __future__ import annotations

import msgspec

from paceline.checkpoint.manifest import list_checkpoints
from paceline.checkpoint.storage import open_storage
from paceline.coordinator.reader import LogReader
from paceline.errors import PacelineError
from paceline.messages.status import CheckpointStatus
from paceline.runtime.rundir import RunDir


def standing(run: RunDir) -> dict[str, object]:
    """The `step` up to which the run has committed, and the newest complete `checkpoint`, which may be None.

    Leaves out what cannot be read. The tensors of the checkpoint are not checked.
    """
    found: dict[str, object] = {}
    try:
        with LogReader(run.log_file) as reader:
            found["step"] = reader.watermark()
    except PacelineError:
        pass
    try:
        listed = list_checkpoints(open_storage(run.checkpoints), verify=False)
    except (PacelineError, OSError):
        return found
    complete = [(c.folder, c.manifest.position) for c in listed if c.manifest is not None]
    newest = [CheckpointStatus(folder, at.version, at.watermark) for folder, at in complete[-1:]]
    return found | {"checkpoint": msgspec.to_builtins(newest[0]) if newest else None}
