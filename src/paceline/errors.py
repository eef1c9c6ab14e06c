"""All exceptions of Paceline. Every message says what failed and, if the user can do something about it, what to do.

::

    PacelineError
    ├── UsageError (also ValueError)      the script or the command line asks for something that Paceline refuses
    │   ├── LoopError                     the body of the loop breaks a rule of turns
    │   ├── MissingMetricError            job.metrics has no metric of that name (yet); also KeyError
    │   └── MismatchError                 workers disagree on names, shapes, data or hyper-parameters
    ├── DatasetUnavailableError           no source of a data set worked
    ├── DataError                         data cannot be read; names the file and the remedy
    │   ├── BadRecordError                the content of one record is damaged; names the record
    │   ├── DataChangedError              a file is not what it was when it was opened
    │   └── DataUnreachableError          a file cannot be reached: time-out, refused, no such file
    ├── JobError                          the job has ended and cannot go on
    │   ├── JobFailedError                a worker's script raised; carries its traceback
    │   ├── JobStoppedError               the job was stopped from outside while this worker was in a turn
    │   ├── JobRewoundError               the job was rewound to before the loop that this worker is in
    │   ├── SlotPoisonedError             one slot lost too many workers in a row; names its samples
    │   ├── UpdateError                   the optimizer raised on a server; names the parameters
    │   └── ClusterLostError              a role is lost without which the job cannot go on
    ├── RunError (also RuntimeError)      a run of paceline.launch ended and is not done; has the role's traceback
    │   └── RunStoppedError               it was stopped or interrupted, and can be resumed
    ├── RequestError (also ValueError)    a predictor refuses a request; has the status of the HTTP answer
    ├── ExportError (also RuntimeError)   a model cannot be written in a format; says what would work
    ├── SaveError (also OSError)          job.save cannot write its file; names the file and the cause
    ├── CheckpointError                   a checkpoint is incomplete or damaged; names the file
    ├── FilesError                        the user's files cannot be listed, sent, kept or unpacked; names the file
    ├── StateError                        the durable log cannot be read or written
    │   └── DeposedError                  a newer coordinator, or another run, has taken over
    └── TransportError
        ├── PeerLostError                 the session with a peer has ended
        ├── PeerUnknownError              there is no session with that peer
        ├── DeadlineError                 an answer did not come in time; names the peer, the step and the answer
        ├── AuthenticationError           the peer did not prove that it knows the job's token
        └── RefusedFrameError             a frame breaks a rule of the wire; it never reaches torch
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that Paceline raises itself."""


class UsageError(PacelineError, ValueError):
    """The script or the command line asks for something that Paceline refuses; the message names the remedy."""


class LoopError(UsageError):
    """The body of the training loop breaks a rule of turns; the message names the remedy."""


class MissingMetricError(UsageError, KeyError):
    """`job.metrics` has no metric of that name, or none yet; the message says which."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(f"job.metrics has no {name!r}: {why}")

    def __str__(self) -> str:
        """The message. A `KeyError` would show it in quotes."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (MissingMetricError, (self.name, self.why))


class MismatchError(UsageError):
    """Workers of one job disagree; the message names the difference. Run the same script everywhere."""


class DatasetUnavailableError(PacelineError, RuntimeError):
    """No source of the data set worked; the message lists those that were tried."""


class DataError(PacelineError, RuntimeError):
    """Data cannot be read. The message names the file, what is wrong with it, and the remedy."""


class BadRecordError(DataError):
    """The content of one record is damaged: it is the same at every reading. `on_bad_record="skip"` leaves it out.

    A data set of your own may raise it, too. Never raise it for what may work at another try, such as a time-out.
    If a whole run of records is damaged, `first` and `count` say which positions. `problem` is the message
    without the remedy.
    """

    problem: str = ""
    first: int = -1
    count: int = 1


class DataChangedError(DataError):
    """A file of the data is not what it was when the job opened it."""


class DataUnreachableError(DataError):
    """A file of the data cannot be reached: no such file, no right to read it, or no answer after all tries."""


class JobError(PacelineError, RuntimeError):
    """The job has ended and cannot go on; the message says why."""


class JobFailedError(JobError):
    """The script of a worker raised; `trace` is its traceback. Correct the script and run it again."""

    def __init__(self, worker: str, trace: str) -> None:
        self.worker, self.trace = worker, trace
        last = trace.strip().splitlines()[-1] if trace.strip() else "no traceback"
        super().__init__(f"{worker}: {last}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (JobFailedError, (self.worker, self.trace))


class JobStoppedError(JobError):
    """The job was stopped from outside while this worker was in a turn. Nothing that was committed is lost."""


class JobRewoundError(JobError):
    """The job was rewound to before the loop that this worker is in: the engine starts the script again."""


class SlotPoisonedError(JobError):
    """One slot lost too many workers in a row: its samples probably end the process.

    `samples` are indices into the data set of the loop; there are none if the workers ended before the first step.
    """

    def __init__(self, step: int, slot: int, holders: tuple[str, ...], samples: tuple[int, ...]) -> None:
        self.step, self.slot, self.holders, self.samples = step, slot, holders, samples
        who = f"{len(holders)} workers in a row ({', '.join(holders)})"
        more = f" and {len(samples) - 64} more" if len(samples) > 64 else ""
        super().__init__(
            f"slot {slot} of step {step} ended {who}: its samples are {', '.join(map(str, samples[:64]))}{more} "
            "(indices into the data set of the loop). Run the script on these alone to see what ends the process, or "
            "leave them out"
            if samples
            else f"the initial weights ended {who}: see what the logs of these workers say"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (SlotPoisonedError, (self.step, self.slot, self.holders, self.samples))


class UpdateError(JobError):
    """The optimizer raised while a server updated parameters: started again, the server would raise again."""

    def __init__(self, optimizer: str, parameters: tuple[str, ...], cause: str) -> None:
        self.optimizer, self.parameters, self.cause = optimizer, parameters, cause
        named = ", ".join(parameters[:4]) + (f" and {len(parameters) - 4} more" if len(parameters) > 4 else "")
        super().__init__(
            f"{optimizer} cannot update {named}: {cause}. Check the dtype of the parameters, and the hyper-parameters "
            "that the script sets (optimizer.param_groups)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (UpdateError, (self.optimizer, self.parameters, self.cause))


class ClusterLostError(JobError):
    """The job cannot go on without a role that was lost. `paceline run --resume RUN` starts at the last checkpoint."""


class RunError(PacelineError, RuntimeError):
    """A run that `paceline.launch` has started has ended, and is not done.

    `code` is the exit code that `paceline run` has then. `reason` says why the run ended and `advice` what to do.
    `trace` is the traceback of the role that ended it, "" if there is none; the message ends with it.
    """

    def __init__(self, code: int, reason: str, trace: str = "", advice: str = "") -> None:
        self.code, self.reason, self.trace, self.advice = code, reason, trace, advice
        said = f"{reason} ({advice})" if advice else reason
        super().__init__(f"{said}\n\n{trace.rstrip()}" if trace else said)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (type(self), (self.code, self.reason, self.trace, self.advice))


class RunStoppedError(RunError):
    """A run was stopped by its program, or interrupted by a signal. `advice` says at which step a resume begins."""


class RequestError(PacelineError, ValueError):
    """A request to a predictor is refused. `status` is the status of the HTTP answer; the message says why.

    `retry_after_s` is when the client may try again, None if the same request is refused again.
    """

    def __init__(self, status: int, why: str, retry_after_s: float | None = None) -> None:
        self.status, self.why, self.retry_after_s = status, why, retry_after_s
        super().__init__(why)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (RequestError, (self.status, self.why, self.retry_after_s))


class ExportError(PacelineError, RuntimeError):
    """A model cannot be written in a format, or the written file does not compute the same; says what would work."""


class SaveError(PacelineError, OSError):
    """`job.save` cannot write its file. An older file of that name is unchanged, and nothing else is left behind."""

    def __init__(self, path: str, cause: str) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"job.save cannot write {path}: {cause}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (SaveError, (self.path, self.cause))


class CheckpointError(PacelineError):
    """A checkpoint is incomplete or damaged. `paceline checkpoints` lists those that can be used."""

    def __init__(self, folder: str, problem: str) -> None:
        self.folder, self.problem = folder, problem
        super().__init__(f"checkpoint {folder}: {problem}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (CheckpointError, (self.folder, self.problem))


class FilesError(PacelineError, ValueError):
    """The files of a run cannot be listed, sent, kept or unpacked; the message names the file and the reason."""


class StateError(PacelineError, RuntimeError):
    """A file of the run directory cannot be read or written; the message names the file and the reason."""


class DeposedError(StateError):
    """A coordinator of a newer generation has taken over this run directory: this one must end.

    With `place`, a run of a newer term has taken over the checkpoints at that place: this run must end.
    """

    def __init__(self, mine: int, durable: int, place: str = "") -> None:
        self.mine, self.durable, self.place = mine, durable, place
        said = f"generation {mine} may not write: generation {durable} has taken over"
        if place:
            said = (
                f"this run is deposed: another run has taken over the checkpoints at {place} (term {durable}; this run "
                f"has term {mine}). This run changes nothing there any more. `paceline run --resume {place}` continues "
                "from the newest checkpoint"
            )
        super().__init__(said)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (DeposedError, (self.mine, self.durable, self.place))


class TransportError(PacelineError, ConnectionError):
    """The communication between two processes failed."""


class PeerLostError(TransportError):
    """The session with a peer has ended. Whether the peer handled the last message is not known: send it again."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(f"lost {peer}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (PeerLostError, (self.peer, self.reason))


class PeerUnknownError(TransportError):
    """There is no session with that peer: connect first, and wait for `PeerUp`."""


class DeadlineError(TransportError):
    """A peer did not do in time what this process waited for; the message names both.

    `knob` is the setting that lengthens the wait, "" if there is none.
    """

    def __init__(self, peer: str, awaited: str, waited_s: float, step: int | None = None, knob: str = "") -> None:
        self.peer, self.awaited, self.waited_s, self.step, self.knob = peer, awaited, waited_s, step, knob
        where = "" if step is None else f" at step {step}"
        remedy = f"; set {knob} higher if it was only slow" if knob else ""
        super().__init__(f"the {peer} did not {awaited}{where} within {waited_s:.1f} s{remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (DeadlineError, (self.peer, self.awaited, self.waited_s, self.step, self.knob))


class AuthenticationError(TransportError):
    """The peer did not prove that it knows the job's token: both must be started for the same run directory."""


class RefusedFrameError(TransportError):
    """A frame breaks a rule of the wire. `rule` is its short name, which the receiver counts."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule, self.detail = rule, detail
        super().__init__(f"refused a frame ({rule}): {detail}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the arguments when the error is pickled."""
        return (RefusedFrameError, (self.rule, self.detail))
