"""What the job is: its arguments, its model, the coordinator's generation, and why it failed if it did."""

from __future__ import annotations

from paceline.config.dials import ClusterSpec, same_lock_step
from paceline.core.coordinator.events import JobFailed, ModelAgreed, Output
from paceline.core.coordinator.model_differences import compare_models
from paceline.core.coordinator.tables.members import Members
from paceline.core.effects import History, JobFact, ModelFact, Send
from paceline.core.layout import cut
from paceline.errors import MismatchError
from paceline.messages import Abort, JobArgs, Position, Prepare
from paceline.types import BlockSpec, ModelSpec, NodeId


class Identity:
    """The facts of a job that no rewind undoes. `restored`: an earlier coordinator began the job.

    With `one_attempt`, each slot counts as one attempt, the same on all servers, even in lock-step (rule 2).
    """

    def __init__(self, spec: ClusterSpec, generation: int, members: Members) -> None:
        self.spec = spec
        self.generation = generation
        self.job: JobArgs | None = None
        self.model: ModelSpec | None = None
        self.blocks: tuple[BlockSpec, ...] = ()
        self.failure: Abort | None = None
        self.one_attempt = True
        self.restored = False
        self._agreed = False
        self._members = members

    def restore(self, history: History) -> list[Output]:
        """Take over the arguments and the model from the log."""
        self.restored = True
        for row in history.facts:
            match row.fact:
                case JobFact(job=args):
                    self.job = args
                case ModelFact(model=model):
                    self._take_model(model)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: a rewind keeps these facts."""
        return []

    def agree(self, args: JobArgs, worker: str) -> list[Output]:
        """Compare the arguments of a worker with those of the job; the first worker sets them.

        Raises:
            MismatchError: another worker brought a different seed or mode.
        """
        if self.job is None:
            self.job, self._agreed = args, True
            return [JobFact(args)]
        is_first, self._agreed = not self._agreed, True
        is_other = args.mode != self.job.mode and same_lock_step(args.mode, self.job.mode)
        if is_other and args.seed == self.job.seed and is_first and self.spec.resume is not None:
            self.job = args  # the run is resumed with the other reducer
            return [JobFact(args)]
        if (args.seed, args.mode) != (self.job.seed, self.job.mode):
            raise MismatchError(
                f"{worker} joined with seed={args.seed}, mode={args.mode!r}; "
                f"the job has seed={self.job.seed}, mode={self.job.mode!r}: give the same to every join()"
            )
        return []

    def prepare(self, sender: NodeId, message: Prepare) -> list[Output]:
        """Compare the model of a worker with that of the job. The worker is answered once the blocks are placed.

        Raises:
            MismatchError: another worker brought a different model.
        """
        agreed = ModelAgreed(sender, message.req)
        if self.model is not None:
            compare_models(self.model, message.spec, self._members.name(sender))
            return [agreed]
        self._take_model(message.spec)
        return [ModelFact(message.spec), agreed]

    def _take_model(self, model: ModelSpec) -> None:
        self.model, self.blocks = model, cut(model.tensors)
        self.one_attempt = not model.deterministic

    def fail(self, event: JobFailed) -> list[Output]:
        """Fail the job, and tell every member; a second failure changes nothing."""
        if self.failure is not None:
            return []
        self.failure = Abort(self.generation, event.kind, event.reason, event.trace)
        return [Send(node, self.failure) for node in self._members.members]
