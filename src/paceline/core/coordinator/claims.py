"""Claims: things that one worker does for all, such as saving the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.coordinator.events import Output, WarningFound, WorkersGone
from paceline.core.effects import ClaimFact, History, IncarnationFact, Send
from paceline.messages import Claim, ClaimDone, Claimed, Ok, Position, SavedModel
from paceline.types import NodeId

_PASSED = (
    "not done: {key!r}. A worker came to it after a loop that the job had finished before, and the job had not done it "
    "there: the script took another way this time. It must decide by job.metrics, or by the result of job.evaluate, "
    "which are the same in every worker and after a restart"
)


@dataclass(slots=True)
class _Claim:
    holder: NodeId
    done: bool = False
    waiting: dict[NodeId, int] = field(default_factory=dict)


class Claims:
    """Which worker does each claimed task: the first that asks. If that worker is lost, the next that asked does it.

    It also knows which file each task wrote, and what the job wrote to that file last. A rewind does not undo that: it
    does not change files.
    """

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}
        self._files: dict[str, str] = {}
        self._newest: dict[str, SavedModel] = {}

    @property
    def finished(self) -> tuple[str, ...]:
        """The keys of the tasks that are done."""
        return tuple(key for key, claim in self._claims.items() if claim.done)

    def restore(self, history: History) -> list[Output]:
        """Take over the tasks that are done; workers claim the others again."""
        began = [row.fact for row in history.facts if isinstance(row.fact, IncarnationFact)]
        self.reset(began[-1].position if began else None)
        for row in history.facts:
            if isinstance(row.fact, ClaimFact):
                self._note(row.fact)
                if row.incarnation == history.incarnation:
                    self._claims[row.fact.key] = _Claim("", done=True)
        return []

    def _note(self, fact: ClaimFact) -> None:
        if fact.saved is not None:
            self._files[fact.key] = fact.saved.file
            self._newest[fact.saved.file] = fact.saved

    def reset(self, position: Position | None) -> list[Output]:
        """Forget all claims but the tasks that were done at `position`."""
        self._claims = {} if position is None else {key: _Claim("", done=True) for key in position.claims}
        return []

    def claim(self, sender: NodeId, message: Claim) -> list[Output]:
        """A worker asks to do a task for all. It is answered when it must do the task, or when the task is done.

        A worker that is behind the job never gets a task: its model does not have the weights that the task needs.
        """
        claim = self._claims.get(message.key)
        if message.passed and (claim is None or not claim.done):
            warning = [WarningFound("passed claim", _PASSED.format(key=message.key))] if claim is None else []
            return [*warning, Send(sender, Claimed(message.req, False))]
        if claim is None:
            self._claims[message.key] = _Claim(sender)
            return [Send(sender, Claimed(message.req, True))]
        if claim.done:
            saved = self._newest.get(self._files.get(message.key, ""))
            return [Send(sender, Claimed(message.req, False, saved))]
        if claim.holder == sender:
            return [Send(sender, Claimed(message.req, True))]
        claim.waiting[sender] = message.req
        return []

    def done(self, sender: NodeId, message: ClaimDone) -> list[Output]:
        """Make durable that a task is done, and tell the workers that wait for it."""
        claim = self._claims.get(message.key)
        fact = ClaimFact(message.key, message.saved)
        self._note(fact)
        out: list[Output] = [fact, Send(sender, Ok(message.req))]
        if claim is None:  # claimed under an earlier coordinator
            claim = self._claims[message.key] = _Claim(sender)
        if not claim.done:
            claim.done = True
            out += [Send(node, Claimed(req, False)) for node, req in claim.waiting.items()]
            claim.waiting.clear()
        return out

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Give each task that a gone worker had claimed to the next worker that asked for it."""
        out: list[Output] = []
        for key, claim in list(self._claims.items()):
            for node in event.workers:
                claim.waiting.pop(node, None)
            if claim.holder in event.workers and not claim.done:
                if claim.waiting:
                    heir = next(iter(claim.waiting))
                    out.append(Send(heir, Claimed(claim.waiting.pop(heir), True)))
                    claim.holder = heir
                else:
                    del self._claims[key]
        return out
