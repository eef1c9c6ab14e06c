"""The actions of a launcher, as values: `Decisions` and `Conclusion` return them, the supervisor carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.messages.status import RunSummary
from paceline.runtime.exit_codes import EXIT_DONE


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its exit code and, if that is not 0, what the user is shown.

    `ended` names the process whose end ended the run: without a `trace`, the user is shown its last words. A run that
    is done has a `summary`.
    """

    code: int = EXIT_DONE
    reason: str = ""
    trace: str = ""
    advice: str = ""
    ended: str = ""
    summary: RunSummary | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Show the user a note."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process called `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to the process called `name`, so that it ends."""

    name: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Kill the process called `name`: the job is complete, and does not need it."""

    name: str


@dataclass(frozen=True, slots=True)
class Dump:
    """Ask the process called `name` to write the stacks of its threads to its log."""

    name: str


@dataclass(frozen=True, slots=True)
class Rescale:
    """Tell the coordinator how many workers and servers the run shall have; 0 servers means: do not change them."""

    workers: int
    servers: int = 0


@dataclass(frozen=True, slots=True)
class KeepSize:
    """Write these numbers of processes to the run's plan, so that a resumed run has them too."""

    workers: int
    servers: int
    samplers: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """Handle the loss of a process that is not started again. `reason` says why it is not."""

    name: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Ask the coordinator for the summary: the job has ended."""


@dataclass(frozen=True, slots=True)
class End:
    """End the run with this outcome."""

    outcome: Outcome


Action = Tell | Start | Terminate | Dismiss | Dump | Rescale | KeepSize | Lost | Finish | End
