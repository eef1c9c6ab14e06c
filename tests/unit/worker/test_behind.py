"""A worker that has passed a loop is warned once when its script calls the model, which has other weights there."""

from __future__ import annotations

import pytest
import torch

from paceline.worker.behind import Behind


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(2, 1)


def test_a_call_of_the_model_after_a_passed_loop_gives_one_warning(model: torch.nn.Module) -> None:
    said: list[tuple[str, str]] = []
    behind = Behind("worker-1", model, lambda topic, text: said.append((topic, text)))
    model(torch.ones(2))
    behind.passed(2)
    with behind.validating():
        model(torch.ones(2))
    assert said == [], "the job itself has called the model"
    model(torch.ones(2))
    model(torch.ones(2))
    behind.passed(3)
    model(torch.ones(2))
    ((topic, text),) = said
    assert topic == "passed loop"
    assert text.startswith("worker-1 called the model after its loop number 3, which the job had finished before")


def test_the_model_is_watched_only_while_the_worker_is_behind(model: torch.nn.Module) -> None:
    behind = Behind("worker-1", model, lambda topic, text: pytest.fail(text))
    assert not model._forward_pre_hooks
    behind.passed(0)
    assert behind.is_behind
    assert len(model._forward_pre_hooks) == 1
    behind.caught_up()
    assert not behind.is_behind
    assert not model._forward_pre_hooks
    model(torch.ones(2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_left_alone() -> None:
    behind = Behind("worker-1", torch.jit.script(torch.nn.Linear(2, 1)), lambda topic, text: None)
    behind.passed(0)
    assert behind.is_behind
