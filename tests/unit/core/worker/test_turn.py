"""The turn: which answers it accepts, and what it counts as progress."""

from __future__ import annotations

from tests.kit.core import fence, segment

from paceline.core.worker.turn import CurrentTurn, WorkerState
from paceline.messages import Abort, EvalOver, Grant, HeldLease, PhaseOver


def grant(counter: int, *, incarnation: int = 0, epoch: int = 1) -> Grant:
    return Grant(1, 1, incarnation, epoch, 4, 1, 2, fence(counter), segment(), True)


def over(phase: int = 0, *, epoch: int = 1) -> PhaseOver:
    return PhaseOver(1, 1, 0, epoch, phase, 6, 6, False, True, {})


def state(turn: CurrentTurn) -> WorkerState:
    """Return the state; a function, so that a type checker does not narrow it by an earlier assertion."""
    return turn.state


def test_a_second_answer_replaces_only_a_lease_that_waits_to_read() -> None:
    turn = CurrentTurn()
    turn.ask(0, -1)
    turn.take(grant(5))
    turn.pull()
    assert not turn.accepts(grant(5)), "the same answer changes nothing"
    assert not turn.accepts(grant(4)), "an older lease is ignored"
    assert turn.accepts(grant(6))
    assert turn.accepts(over())
    assert not turn.accepts(EvalOver(1, 1, 0, 5, {}))
    turn.proceed()
    assert state(turn) == WorkerState.COMPUTING
    assert not turn.accepts(grant(6))
    assert not turn.accepts(grant(6, incarnation=1)), "the worker computes, so it learns of the rewind in its next turn"


def test_the_end_of_a_phase_is_replaced_only_by_a_newer_placement() -> None:
    turn = CurrentTurn()
    turn.ask(0, -1)
    turn.take(over())
    turn.pull()
    assert not turn.accepts(grant(9))
    assert turn.accepts(over(epoch=2))


def test_the_progress_of_a_turn_never_decreases() -> None:
    turn = CurrentTurn()
    assert turn.progress == -1
    turn.ask(1, -1)
    assert turn.progress == 2
    turn.take(over(1))
    assert turn.progress == 3
    turn.ask(1, -1)
    assert turn.progress == 3


def test_only_a_training_lease_of_this_incarnation_counts_as_held() -> None:
    turn = CurrentTurn()
    turn.ask(0, -1)
    assert turn.lease_in_hand(0) is None
    turn.take(grant(5))
    turn.pull()
    assert turn.lease_in_hand(0) == HeldLease(4, 1, fence(5), None, 1)
    assert turn.lease_in_hand(1) is None
    assert turn.is_pulling_for(fence(5))
    turn.cancel()
    assert (turn.lease_in_hand(0), turn.fence, turn.is_waiting) == (None, None, True)


def test_an_abort_ends_the_turn() -> None:
    turn = CurrentTurn()
    turn.end(Abort(1, "failed", "why"))
    assert turn.abort is not None
    assert (state(turn), turn.is_waiting) == (WorkerState.ABORTED, False)
