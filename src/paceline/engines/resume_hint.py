"""Says where a resume of a run begins. Pure: it reads no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.messages.status import Status


@dataclass(frozen=True, slots=True)
class ResumeHint:
    """Where a resume of the run in the directory `run` begins, in words.

    `every` is the interval of its checkpoints, as in ``--checkpoint-every``. `begun_from` is the checkpoint from which
    the run itself was resumed, "" if there was none.
    """

    run: Path
    every: str
    begun_from: str = ""

    def after_end(self, status: Status | None, problem: str = "") -> str:
        """The command that resumes the run, and the step at which it begins.

        `status` is the last one; None if no coordinator has answered. `problem` says why the last steps are in no
        checkpoint.
        """
        command = f"`paceline run --resume {self.run}`"
        if status is not None and (kept := status.checkpoint) is not None:
            again = f"; the steps after it are computed again, because {problem}" * bool(problem)
            return f"{command} continues at step {kept.step}{again}"
        if self.begun_from:
            return f"{command} continues from checkpoint {self.begun_from}"
        why = problem or f"none was due (--checkpoint-every {self.every})"
        return f"{command} starts at step 0: no checkpoint was made, because {why}"

    def after_error(self, status: Status | None) -> str:
        """What to do after an error of the script."""
        kept = None if status is None else status.checkpoint
        if kept is not None:
            where = f"step {kept.step}"
        elif self.begun_from:
            where = f"checkpoint {self.begun_from}"
        else:
            return "fix the script or its data and start again: no checkpoint was made"
        command = f"`paceline run --resume {self.run} --allow-changes`"
        return f"fix the script or its data, then {command} continues at {where}; or start again"
