"""The contract of `Reducer`: the test class of each reducer inherits it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from torch import nn

from paceline.core.worker.turn import Task
from paceline.messages import Grant, Sealed
from paceline.reducers.base import Reducer
from paceline.types import Kind
from paceline.worker.binding import Binding


class Harness(ABC):
    """A model with a reducer, and what the other side of the reducer has received."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.binding = Binding(self.model, self.optimizer, None)

    @property
    @abstractmethod
    def reducer(self) -> Reducer: ...

    @abstractmethod
    def lease(self, step: int) -> Grant:
        """Return a lease of the only slot of `step`; the model has the state of that step."""

    @abstractmethod
    def counted(self) -> tuple[float, Mapping[int, torch.Tensor]]:
        """Weight and gradients (by tensor number, absent ones left out) of the attempt that was sealed last."""

    @abstractmethod
    def publish(self, values: Sequence[torch.Tensor]) -> Task:
        """Make a version with these parameters; returns a task that needs it."""

    @abstractmethod
    def close(self) -> None: ...

    # ------------------------------------------------------------ the worker's side

    def begin(self, step: int = 0, weight: float = 1.0, *, keep: bool = False) -> None:
        self.binding.begin_turn()
        self.grant = self.lease(step)
        self.reducer.begin(self.grant, weight, keep=keep)

    def backward(self) -> None:
        self.model(torch.randn(4, 8)).square().mean().backward()

    def offer(self) -> None:
        """Offer the gradients of all blocks, as a backward pass does."""
        blocks = [b for b in self.binding.blocks if b.kind == Kind.PARAMETER]
        self.reducer.offer({n: grad.reshape(-1) for n, grad in self.gradients().items()}, blocks)

    def gradients(self) -> dict[int, torch.Tensor]:
        """Copies of the gradients that the model has now."""
        return {e.number: e.tensor.grad.detach().clone() for e in self.binding.parameters if e.tensor.grad is not None}

    def seal(self, *, empty: bool = False) -> None:
        self.reducer.seal(None if empty else self.binding.made(), report(self.grant))


def report(grant: Grant) -> Sealed:
    """Return a report of the slot of `grant`."""
    return Sealed(grant.step, grant.slot, grant.fence, 1.0, (), {}, 0.1)


def assert_same(found: Mapping[int, torch.Tensor], expected: Mapping[int, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for number, value in expected.items():
        assert torch.equal(found[number].reshape(-1), value.reshape(-1)), number


class ReducerContract(ABC):
    @abstractmethod
    def make(self) -> Harness: ...

    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        made = self.make()
        yield made
        made.close()

    @pytest.mark.parametrize("offered", [False, True])
    def test_a_sealed_turn_counts_with_its_weight(self, harness: Harness, offered: bool) -> None:
        harness.begin(weight=0.5)
        harness.backward()
        if offered:
            harness.offer()
        expected = harness.gradients()
        harness.seal()
        weight, found = harness.counted()
        assert weight == 0.5
        assert_same(found, expected)

    def test_gradients_that_change_after_the_offer_count_as_they_are_at_the_seal(self, harness: Harness) -> None:
        harness.begin()
        harness.backward()
        harness.offer()
        torch.nn.utils.clip_grad_norm_(harness.model.parameters(), 1e-3)
        expected = harness.gradients()
        harness.seal()
        assert_same(harness.counted()[1], expected)

    def test_a_gradient_that_is_gone_at_the_seal_is_absent(self, harness: Harness) -> None:
        harness.begin()
        harness.backward()
        harness.offer()
        harness.binding.parameters[0].tensor.grad = None
        expected = harness.gradients()
        harness.seal()
        assert_same(harness.counted()[1], expected)

    def test_an_offer_without_a_seal_does_not_count(self, harness: Harness) -> None:
        harness.begin()
        harness.backward()
        harness.offer()
        harness.begin()
        harness.backward()
        expected = harness.gradients()
        harness.seal()
        assert_same(harness.counted()[1], expected)

    @pytest.mark.parametrize("offered", [False, True])
    def test_an_empty_seal_has_weight_0(self, harness: Harness, offered: bool) -> None:
        harness.begin()
        if offered:
            harness.backward()
            harness.offer()
        harness.seal(empty=True)
        weight, found = harness.counted()
        assert weight == 0.0
        assert not found

    def test_the_script_may_overwrite_its_gradients_after_the_seal(self, harness: Harness) -> None:
        harness.begin()
        harness.backward()
        expected = harness.gradients()
        harness.seal()
        for entry in harness.binding.parameters:
            assert entry.tensor.grad is not None
            entry.tensor.grad.fill_(7.0)
        assert_same(harness.counted()[1], expected)

    def test_a_seal_does_not_wait_for_earlier_seals(self, harness: Harness) -> None:
        for step in range(5):
            harness.begin(step)
            harness.backward()
            expected = harness.gradients()
            harness.seal()
        assert_same(harness.counted()[1], expected)

    def test_a_sealed_turn_can_be_handed_over_again_for_another_lease(self, harness: Harness) -> None:
        harness.begin(weight=0.5)
        harness.backward()
        expected = harness.gradients()
        harness.seal()
        harness.counted()
        harness.binding.drop_gradients()
        harness.reducer.seal_again(report(harness.lease(0)))
        weight, found = harness.counted()
        assert weight == 0.5
        assert_same(found, expected)

    @pytest.mark.parametrize("offered", [False, True])
    def test_the_turn_before_the_last_can_be_handed_over_again_if_it_was_kept(
        self, harness: Harness, offered: bool
    ) -> None:
        made = []
        for step, weight in enumerate((0.5, 0.25)):
            harness.begin(step, weight, keep=step > 0)
            harness.backward()
            if offered:
                harness.offer()
            made.append(harness.gradients())
            harness.seal()
            harness.counted()
        harness.binding.drop_gradients()
        for kept, step, expected in ((True, 0, 0.5), (False, 1, 0.25)):
            harness.reducer.seal_again(report(harness.lease(step)), kept=kept)
            weight, found = harness.counted()
            assert weight == expected
            assert_same(found, made[step])

    def test_a_read_brings_the_model_to_the_state_that_the_task_needs(self, harness: Harness) -> None:
        before = [e.tensor.detach().clone() for e in harness.binding.parameters]
        values = [torch.full_like(value, 3.0) for value in before]
        task = harness.publish(values)
        for entry, value in zip(harness.binding.parameters, before, strict=True):
            assert torch.equal(entry.tensor, value), "the model must change only during a read"
        harness.reducer.read(task)
        for entry, value in zip(harness.binding.parameters, values, strict=True):
            assert torch.equal(entry.tensor, value)

    def test_offers_are_wanted_at_first(self, harness: Harness) -> None:
        assert harness.reducer.wants_offers
