"""When a step may be committed, and with which attempts."""

from __future__ import annotations

import math

import pytest
from tests.kit.core import HYPER, fence

from paceline.core.coordinator.gate import Gate, clip_scale, disagreement, mean_logs
from paceline.messages import Ready, Receipt, Sealed
from paceline.types import Fence, Hyper

A, B = fence(1), fence(2)


def seal(slot: int, of: Fence, *, weight: float = 1.0, hyper: Hyper = HYPER, **logs: float) -> Sealed:
    return Sealed(0, slot, of, weight, hyper, logs, 0.1)


def ready(*fences: Fence, partials: tuple[tuple[int, float], ...] = ()) -> Ready:
    return Ready(0, 1, 0, fences, 0, 0, partials)


def test_every_server_must_be_ready_and_every_slot_sealed() -> None:
    gate = Gate()
    gate.ready("s0", ready(A, B), one_attempt=False)
    gate.sealed(seal(0, A))
    gate.sealed(seal(1, B))
    assert gate.passed(0, 2, ["s0", "s1"], one_attempt=False, valid=()) is None
    gate.ready("s1", ready(A, B), one_attempt=False)
    passed = gate.passed(0, 2, ["s0", "s1"], one_attempt=False, valid=())
    assert passed is not None
    assert [s.fence for s in passed.seals] == [A, B]
    gate.forget(0)
    assert 0 not in gate
    assert len(gate) == 0


def test_a_step_is_not_committed_before_every_slot_is_reported() -> None:
    gate = Gate()
    gate.ready("s0", ready(A, B), one_attempt=False)
    gate.sealed(seal(0, A))
    assert gate.passed(0, 2, ["s0"], one_attempt=False, valid=()) is None


def test_interchangeable_attempts_need_not_be_the_same_on_every_server() -> None:
    gate = Gate()
    gate.ready("s0", ready(A), one_attempt=False)
    gate.ready("s1", ready(B), one_attempt=False)
    gate.sealed(seal(0, B))
    gate.sealed(seal(0, A))
    passed = gate.passed(0, 1, ["s0", "s1"], one_attempt=False, valid=())
    assert passed is not None
    assert [s.fence for s in passed.seals] == [B], "the log names the attempt that was reported first"


def test_attempts_that_differ_must_be_the_same_on_every_server() -> None:
    gate = Gate()
    gate.sealed(seal(0, A))
    gate.sealed(seal(0, B))
    gate.ready("s0", ready(A), one_attempt=True)
    gate.ready("s1", ready(B), one_attempt=True)
    assert gate.passed(0, 1, ["s0", "s1"], one_attempt=True, valid={A, B}) is None
    gate.ready("s1", ready(A), one_attempt=True)
    passed = gate.passed(0, 1, ["s0", "s1"], one_attempt=True, valid={A, B})
    assert passed is not None
    assert [s.fence for s in passed.seals] == [A]


def test_a_step_is_not_committed_with_a_void_attempt() -> None:
    gate = Gate()
    gate.sealed(seal(0, A))
    gate.ready("s0", ready(A), one_attempt=True)
    assert gate.passed(0, 1, ["s0"], one_attempt=True, valid=()) is None
    gate.sealed(seal(0, B))
    gate.ready("s0", ready(B), one_attempt=True)
    passed = gate.passed(0, 1, ["s0"], one_attempt=True, valid={B})
    assert passed is not None
    assert passed.seals[0].fence == B


def test_an_attempt_is_chosen_when_it_is_whole_sealed_and_valid() -> None:
    gate = Gate()
    servers = ["s0", "s1"]
    gate.receipt("s0", Receipt(0, 1, 0, 1, A))
    gate.sealed(seal(1, A))
    assert not gate.choose(0, 1, A, servers, {A})
    gate.receipt("s1", Receipt(0, 1, 0, 1, A))
    assert not gate.choose(0, 1, A, servers, ()), "the lease of the attempt is void"
    assert gate.choose(0, 1, A, servers, {A})
    assert gate.chosen(0, 1) == A
    assert gate.chosen(0, 0) is None
    for server in servers:
        gate.receipt(server, Receipt(0, 1, 0, 1, B))
    gate.sealed(seal(1, B))
    assert not gate.choose(0, 1, B, servers, {B}), "another attempt was chosen for the slot before"


def test_an_attempt_that_is_not_sealed_is_not_chosen() -> None:
    gate = Gate()
    gate.receipt("s0", Receipt(0, 1, 0, 0, A))
    assert not gate.choose(0, 0, A, ["s0"], {A})


def test_steps_that_will_not_be_computed_are_forgotten() -> None:
    gate = Gate()
    gate.sealed(seal(0, A))
    gate.sealed(Sealed(3, 0, B, 1.0, HYPER, {}, 0.1))
    gate.drop_beyond(3)
    assert 0 in gate
    assert 3 not in gate


def test_hyper_parameters_of_a_step_must_agree() -> None:
    assert disagreement((seal(0, A), seal(1, B))) is None
    other: Hyper = ({"lr": 0.2},)
    assert disagreement((seal(0, A), seal(1, B, hyper=other))) == (0, 1, HYPER, other)


def test_the_clip_factor_combines_partial_norms_in_block_order() -> None:
    said = (ready(partials=((2, 9.0),)), ready(partials=((0, 4.0), (1, 12.0))))
    assert clip_scale(said, None) == 1.0
    assert clip_scale(said, 10.0) == 1.0
    assert clip_scale(said, 1.0) == pytest.approx(0.2, rel=1e-6)
    assert clip_scale(said, 1.0) == clip_scale(said[::-1], 1.0)


def test_logs_are_means_weighted_by_samples() -> None:
    seals = (seal(0, A, loss=1.0), seal(1, B, weight=0.5, loss=4.0, extra=7.0))
    assert mean_logs(seals) == {"loss": pytest.approx(2.0), "extra": 7.0}
    assert mean_logs((seal(0, A, weight=0.0, loss=3.0),)) == {"loss": 3.0}
    assert math.isnan(mean_logs((seal(0, A, loss=math.nan),))["loss"])
