"""Reads from the servers the blocks that bring the worker's model to the state that its task needs."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.core.worker.model_state import ModelState
from paceline.core.worker.requests import CoordinatorRequests
from paceline.core.worker.required_state import Want, wanted
from paceline.core.worker.server_requests import ServerRequests
from paceline.core.worker.turn import CurrentTurn, Task
from paceline.messages import EvalOver, Grant, Pull, PullReply
from paceline.types import INIT_STEP, NodeId


class Reading:
    """The read of one turn. It has no state of its own: it changes turn, model state and requests together."""

    def __init__(
        self, turn: CurrentTurn, model: ModelState, requests: CoordinatorRequests, transfers: ServerRequests
    ) -> None:
        self._turn = turn
        self._model = model
        self._requests = requests
        self._transfers = transfers

    def begin(self, task: Task, last_step: int, now: float) -> list[Send]:
        """Pull what `task` needs, or first ask for the placement. This worker has sealed `last_step` last."""
        self._transfers.forget_pulls()
        if not isinstance(task, EvalOver) and (self._model.placement is None or self._model.epoch < task.epoch):
            self._turn.pull()
            return [self._requests.place(self._model.epoch, now)]
        if isinstance(task, Grant) and task.step == INIT_STEP:
            self._turn.initialise()
            return []
        want = wanted(task, last_step)
        out = [] if want is None else self._pull(want, now, ahead=isinstance(task, Grant) and want.exact >= 0)
        if out:
            self._turn.pull()
        else:
            self._turn.proceed()
        return out

    @property
    def is_open(self) -> bool:
        """Whether the read waits: for the placement, or for answers of servers."""
        return self._requests.is_placing or self._transfers.is_reading

    def _pull(self, want: Want, now: float, *, ahead: bool) -> list[Send]:
        """Pull from every server whose blocks in the model are not in the state `want`; with `ahead`, for a lease."""
        model, out = self._model, []
        for server, blocks in model.by_server.items():
            held = model.held[server]
            if want.exact >= 0 and held == want.exact:
                continue
            have = held if want.exact < 0 or held <= want.exact else -1
            pull = Pull(self._requests.next_req(), model.incarnation, model.epoch, *want, have, blocks, ahead)
            out.append(self._transfers.pull(server, pull, now))
        return out

    def receive(self, sender: NodeId, reply: PullReply, now: float) -> bool:
        """Note a server's reply. True if the shell must copy its blocks into the model."""
        if reply.incarnation != self._model.incarnation:
            return False
        complete = self._transfers.receive(sender, reply, now)
        if complete is None:
            return False
        self._model.fill(sender, reply.version if complete else -1, ahead=reply.ahead)
        if not self._transfers.is_reading:
            self._turn.proceed()
        return True
