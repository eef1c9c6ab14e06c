"""The one exception tree.

::

    PacelineError
    ├── UsageError (also ValueError)      the script or the command line asks for something that is refused
    │   ├── LoopError                     the body of the loop breaks a rule of turns; the message names the remedy
    │   └── MismatchError                 workers disagree on names, shapes, data or hyper-parameters
    ├── DatasetUnavailableError           no source of a data set worked
    ├── JobError                          the job has ended and cannot go on
    │   ├── JobFailedError                a worker's script raised; carries its traceback
    │   ├── JobStoppedError               the job was stopped from outside while this worker was in a turn
    │   ├── JobRewoundError               the job went back to before this worker's place in the script
    │   ├── SlotPoisonedError             one slot lost too many holders in a row
    │   └── ClusterLostError              a role that the job cannot do without is gone
    ├── CheckpointError                   a checkpoint is incomplete or damaged; names the file
    ├── StateError                        the durable log refused a write
    │   └── DeposedError                  a newer coordinator has taken over
    └── TransportError
        ├── PeerLostError                 the peer closed or stopped answering
        ├── PeerUnknownError              no session with that peer
        ├── DeadlineError                 a wait ended without what was awaited; names peer, step and thing
        ├── AuthenticationError           the token was refused
        └── RefusedFrameError             a frame that breaks the rules of the wire; never reaches torch
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of everything Paceline raises on purpose."""


class UsageError(PacelineError, ValueError):
    """The caller asked for something that Paceline refuses; the message names the remedy."""


class LoopError(UsageError):
    """The body of the training loop broke a rule of turns."""


class MismatchError(UsageError):
    """Two workers of one job disagree."""


class DatasetUnavailableError(PacelineError, RuntimeError):
    """No source of the data set worked; the message lists what was tried."""


class JobError(PacelineError, RuntimeError):
    """The job has ended and cannot go on."""


class JobFailedError(JobError):
    """A worker's script raised."""

    def __init__(self, worker: str, trace: str) -> None:
        self.worker, self.trace = worker, trace
        last = trace.strip().splitlines()[-1] if trace.strip() else "no traceback"
        super().__init__(f"{worker}: {last}")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (JobFailedError, (self.worker, self.trace))


class JobStoppedError(JobError):
    """The job ended while this worker was in a turn."""


class JobRewoundError(JobError):
    """The job went back to a checkpoint from before this worker's place in the script: start the script again."""


class SlotPoisonedError(JobError):
    """One slot lost too many holders in a row."""

    def __init__(self, step: int, slot: int, holders: tuple[str, ...], samples: str) -> None:
        self.step, self.slot, self.holders, self.samples = step, slot, holders, samples
        super().__init__(
            f"slot {slot} of step {step} lost {len(holders)} holders in a row ({', '.join(holders)}); "
            f"its samples are {samples}: look for an input that ends the process, or raise `max_losses`"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (SlotPoisonedError, (self.step, self.slot, self.holders, self.samples))


class ClusterLostError(JobError):
    """A role that the job cannot do without is gone."""


class CheckpointError(PacelineError):
    """A checkpoint is incomplete or damaged."""

    def __init__(self, folder: str, problem: str) -> None:
        self.folder, self.problem = folder, problem
        super().__init__(f"checkpoint {folder}: {problem}")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (CheckpointError, (self.folder, self.problem))


class StateError(PacelineError, RuntimeError):
    """The durable log refused a write."""


class DeposedError(StateError):
    """A coordinator of a newer generation has taken over this run directory."""

    def __init__(self, mine: int, durable: int) -> None:
        self.mine, self.durable = mine, durable
        super().__init__(f"generation {mine} may not write: generation {durable} has taken over")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (DeposedError, (self.mine, self.durable))


class TransportError(PacelineError, ConnectionError):
    """Something between two processes went wrong."""


class PeerLostError(TransportError):
    """The peer closed or stopped answering; whether the last message was applied is not known."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(f"lost {peer}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (PeerLostError, (self.peer, self.reason))


class PeerUnknownError(TransportError):
    """There is no session with that peer."""


class DeadlineError(TransportError):
    """A wait ended without what was awaited."""

    def __init__(self, peer: str, awaited: str, waited_s: float, step: int | None = None) -> None:
        self.peer, self.awaited, self.waited_s, self.step = peer, awaited, waited_s, step
        where = "" if step is None else f" at step {step}"
        super().__init__(
            f"the {peer} did not {awaited}{where} within {waited_s:.1f} s; "
            "raise `timeout_s` (PACELINE_TIMEOUT_S) if the peer was only slow"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (DeadlineError, (self.peer, self.awaited, self.waited_s, self.step))


class AuthenticationError(TransportError):
    """The peer did not prove that it knows the job's token."""


class RefusedFrameError(TransportError):
    """A frame that breaks the rules of the wire. `rule` is a short name, counted by the receiver."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule, self.detail = rule, detail
        super().__init__(f"refused a frame ({rule}): {detail}")

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes."""
        return (RefusedFrameError, (self.rule, self.detail))
