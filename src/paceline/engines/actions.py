"""What the decisions of a launcher come to: values that the supervisor carries out, in their order."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.runtime.exit_codes import EXIT_DONE


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the exit code, and what is shown where it is not 0.

    The last lines of `tail_of` are shown where there is no `trace`.
    """

    code: int = EXIT_DONE
    reason: str = ""
    trace: str = ""
    advice: str = ""
    tail_of: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    """Show a note."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process of `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the process of `name` to end, by SIGTERM."""

    name: str


@dataclass(frozen=True, slots=True)
class Rescale:
    """Tell the coordinator how many workers and servers the run has (0: as before)."""

    workers: int
    servers: int = 0


@dataclass(frozen=True, slots=True)
class KeepSize:
    """Write the wanted size to the run's plan: a resumed run goes on with it."""

    workers: int
    servers: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that the run needs is not started again. `reason` says why."""

    name: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: ask the coordinator for the summary."""


@dataclass(frozen=True, slots=True)
class End:
    """The run has ended."""

    outcome: Outcome


Action = Tell | Start | Terminate | Rescale | KeepSize | Lost | Finish | End
