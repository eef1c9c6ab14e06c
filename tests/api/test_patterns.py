"""Ways to write a PyTorch training loop that must work with a job."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.kit.line import error, line, one_by_one, points, prepared, through, weights
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

import paceline
from paceline.coordinator.reader import LogReader
from paceline.errors import LoopError, MissingMetricError, UsageError


def fit(job: paceline.Job, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> int:
    """Run the plain loop; return the number of turns."""
    turns = 0
    for x, y in job.batches(points(), 8, **{"slots": 2, **options}):
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
        turns += 1
    return turns


def fitted(**options: Any) -> list[float]:
    """Return the weights that the plain loop ends with."""
    job, model, optimizer = prepared()
    with job:
        fit(job, model, optimizer, **options)
    return weights(model)


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


# ------------------------------------------------------------------ leaving the loop


def _plainly(loop: Any) -> Iterator[Any]:
    return iter(loop)


@pytest.mark.parametrize("wrap", [_plainly, enumerate, through, one_by_one], ids=lambda f: f.__name__.strip("_"))
def test_break_ends_the_job_at_the_last_committed_version(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    seen: list[tuple[int, list[float]]] = []

    @job.validate(points(), every=100)
    def check(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        seen.append((job.step, weights(model)))
        return {"error": (model(x) - y).square().mean()}

    at_break: list[float] = []
    for item in wrap(job.batches(points(), 8, slots=2, epochs=10)):
        x, y = item[1] if wrap is enumerate else item
        if job.step == 3:
            at_break = weights(model)
            break
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
    after = weights(model)
    assert after == at_break, "step 3 is the first that does not count"
    assert job.step == 3
    assert [w for _, w in seen] == [after], "the validation ran on the last version"
    assert job.metrics["error"] == pytest.approx(error(model, *points().tensors).item(), rel=1e-5)
    assert fit(job, model, optimizer) == 0, "the job has ended, so a later loop has no turns"
    assert weights(model) == after
    job.close()
    summary = summary_of(tmp_path / "run")
    assert summary["steps"] == 3
    assert summary["stopped"] == "the script left its loop"
    assert summary["digest"] == paceline.digest(model)


def test_break_after_step_counts_only_what_is_committed() -> None:
    job, model, optimizer = prepared()
    with job:
        for turns, (x, y) in enumerate(job.batches(points(), 8, slots=2, epochs=10)):
            error(model, x, y).backward()
            optimizer.step()
            if turns == 2:  # the first slot of step 1 is sealed, the second is not
                break
        assert job.step == 1
    assert weights(model) == _first_steps(1)


def test_break_after_the_step_of_the_last_slot_counts_that_step(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    with job:
        for turns, (x, y) in enumerate(job.batches(points(), 8, slots=2, epochs=10)):
            error(model, x, y).backward()
            optimizer.step()
            if turns == 9:
                break
        assert job.step == 5
    assert weights(model) == _first_steps(5)
    assert summary_of(tmp_path / "run")["steps"] == 5


def test_return_out_of_the_loop_ends_the_job_at_the_last_committed_version() -> None:
    job, model, optimizer = prepared()

    def first_loss() -> Any:
        for x, y in job.batches(points(), 8, slots=2, epochs=10):
            loss = error(model, x, y)
            if job.step == 2:
                return loss.item()
            loss.backward()
            optimizer.step()
        raise AssertionError

    with job:
        first_loss()
        assert job.step == 2
        after = weights(model)
    assert weights(model) == after


@pytest.mark.parametrize("wrap", [_plainly, enumerate, through], ids=lambda f: f.__name__.strip("_"))
def test_an_exception_in_the_loop_propagates(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    job, _, optimizer = prepared(dir=tmp_path / "run")

    def loop() -> None:
        for _ in wrap(job.batches(points(), 8)):
            optimizer.zero_grad()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError), job:
        loop()
    assert not (tmp_path / "run" / "summary.json").exists(), "a run that failed has no summary"
    paceline.join().close()


def test_an_exception_that_the_script_catches_ends_the_job_like_break() -> None:
    job, model, optimizer = prepared()
    with job:
        try:
            for x, y in job.batches(points(), 8, slots=2, epochs=10):
                error(model, x, y).backward()
                optimizer.step()
                if job.step == 2:
                    raise KeyError("enough")
        except KeyError:
            pass
        assert fit(job, model, optimizer) == 0
        assert job.step == 2


def test_a_job_that_is_closed_twice_keeps_its_weights() -> None:
    """A script need not call close(): the end of the process or the next job closes it."""
    job, model, optimizer = prepared()
    assert fit(job, model, optimizer) == 4
    job.close()
    job.close()
    assert weights(model) == fitted()


# ------------------------------------------------------------------ phases


def test_nested_epochs_are_one_loop_with_more_epochs() -> None:
    job, model, optimizer = prepared()
    places = []
    with job:
        for _ in range(3):
            for x, y in job.batches(points(), 8, slots=2):
                places.append((job.epoch, job.step))
                optimizer.zero_grad()
                error(model, x, y).backward()
                optimizer.step()
        assert job.step == 6
    assert places == [(e, 2 * e + s) for e in range(3) for s in range(2) for _ in range(2)]
    assert weights(model) == fitted(epochs=3)


def test_loops_of_a_number_of_steps_are_one_loop_over_epochs() -> None:
    job, model, optimizer = prepared()
    seen = []
    with job:
        for steps in (1, 3, 2):  # an epoch has 2 steps
            fit(job, model, optimizer, steps=steps)
            seen.append((job.step, job.epoch))
    assert seen == [(1, 0), (4, 1), (6, 2)]
    assert weights(model) == fitted(epochs=3)


def test_validate_every_n_steps_keep_the_best_and_stop(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    measured: list[float] = []
    with job:
        for _ in range(10):
            fit(job, model, optimizer, steps=3)
            measured.append(job.evaluate(lambda m, x, y: {"error": error(m, x, y)}, points())["error"])
            if measured[-1] == min(measured):
                job.save(tmp_path / "best.safetensors")
            if len(measured) == 4:
                job.stop("enough")
                break
    assert (summary_of(tmp_path / "run")["steps"], summary_of(tmp_path / "run")["stopped"]) == (12, "enough")
    assert (tmp_path / "best.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"steps": 2, "epochs": 3}, "steps=2 and epochs=3 both say where the loop ends"),
    ],
)
def test_a_number_of_steps_that_cannot_be_is_refused(options: dict[str, Any], named: str) -> None:
    job, _, _ = prepared()
    with job, pytest.raises(UsageError, match=named):
        job.batches(points(), 8, slots=2, **options)


@pytest.mark.parametrize("call", ["save", "evaluate", "batches"])
def test_a_call_that_is_refused_in_a_loop_is_named_with_the_remedy(call: str, tmp_path: Path) -> None:
    job, model, optimizer = prepared()
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: job.save(tmp_path / "model.safetensors"),
        "evaluate": lambda: job.evaluate(lambda m, x, y: {"error": error(m, x, y)}, points()),
        "batches": lambda: job.batches(points(), 8),
    }
    with job:
        for x, y in job.batches(points(), 8, slots=2):
            optimizer.zero_grad()
            error(model, x, y).backward()
            with pytest.raises(LoopError, match=rf"^job\.{call}\(\) is refused inside of a loop .*steps=N"):
                calls[call]()
            optimizer.step()


def test_a_loop_of_zero_epochs_has_no_turns() -> None:
    job, model, optimizer = prepared()
    with job:
        assert fit(job, model, optimizer, epochs=0) == 0
        assert fit(job, model, optimizer, epochs=1) == 4
        assert fit(job, model, optimizer, epochs=0) == 0
    assert weights(model) == fitted()


def test_weights_loaded_after_prepare_are_version_0() -> None:
    start = {"weight": torch.ones(1, 4), "bias": torch.zeros(1)}
    ends = []
    for early in (True, False):
        with paceline.join(seed=3) as job:
            model, optimizer = line()
            if early:
                model.load_state_dict(start)
            job.prepare(model, optimizer)
            if not early:
                model.load_state_dict(start)
            fit(job, model, optimizer)
        ends.append(weights(model))
    assert ends[0] == ends[1]


def test_weights_written_between_loops_are_refused() -> None:
    job, model, optimizer = prepared()
    with job:
        fit(job, model, optimizer)
        nn.init.ones_(model.weight)
        with pytest.raises(LoopError, match="wrote to weight"):
            fit(job, model, optimizer)


def test_the_learning_rate_may_be_set_between_loops(tmp_path: Path) -> None:
    with paceline.join(seed=3, dir=tmp_path / "run") as job:
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        job.prepare(model, optimizer)
        for _ in range(3):
            fit(job, model, optimizer)
            scheduler.step()
    reader = LogReader(tmp_path / "run" / "log.sqlite")
    rates = [commit.hyper[0]["lr"] for commit in reader.commits()[1:]]
    reader.close()
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_the_learning_rate_may_be_a_function_of_the_step(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    with job:
        for x, y in job.batches(points(), 8, slots=2, epochs=2):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + job.step)
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    reader = LogReader(tmp_path / "run" / "log.sqlite")
    rates = [commit.hyper[0]["lr"] for commit in reader.commits()[1:]]
    reader.close()
    assert rates == [0.1, 0.05, 0.1 / 3, 0.025]


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_prepared_scheduler_follows_the_steps(made: str, tmp_path: Path) -> None:
    with paceline.join(seed=3, dir=tmp_path / "run") as job:
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        assert job.prepare(model, optimizer, scheduler) == (model, optimizer, scheduler)
        seen = []
        for x, y in job.batches(points(), 8, slots=2, epochs=2):
            seen.append((job.step, scheduler.get_last_lr()[0]))
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
        assert scheduler.get_last_lr() == [0.1 / 16]
        assert scheduler.last_epoch == 4
    assert seen == [(s, 0.1 * 0.5**s) for s in range(4) for _ in range(2)]
    reader = LogReader(tmp_path / "run" / "log.sqlite")
    assert [c.hyper[0]["lr"] for c in reader.commits()[1:]] == [0.1 * 0.5**s for s in range(4)]
    reader.close()


@pytest.mark.parametrize("nested", [False, True])
def test_a_scheduler_may_follow_the_epochs(nested: bool, tmp_path: Path) -> None:
    with paceline.join(seed=3, dir=tmp_path / "run") as job:
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        job.prepare(model, optimizer, scheduler, scheduler_every="epoch")
        for _ in range(3 if nested else 1):
            fit(job, model, optimizer, epochs=1 if nested else 3)
        assert scheduler.get_last_lr() == [0.1 / 8], "the last epoch has ended"
    reader = LogReader(tmp_path / "run" / "log.sqlite")
    assert [c.hyper[0]["lr"] for c in reader.commits()[1:]] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]
    reader.close()


def test_a_job_that_stops_within_an_epoch_does_not_step_the_scheduler_for_it() -> None:
    with paceline.join(seed=3) as job:
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        job.prepare(model, optimizer, scheduler, scheduler_every="epoch")
        for x, y in job.batches(points(), 8, slots=1, epochs=3):
            error(model, x, y).backward()
            optimizer.step()
            if job.step == 5:
                job.stop()
        assert (job.step, scheduler.get_last_lr()) == (6, [0.05])


def test_a_schedule_that_ends_long_before_the_loop_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    with paceline.join(seed=3) as job:
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.01)
        job.prepare(model, optimizer, scheduler)
        fit(job, model, optimizer, epochs=12)
    said = [text for text in capfd.readouterr().err.splitlines() if text.startswith("warning: ")]
    assert len(said) == 1
    assert "at step 22 the learning rate is 1e-45: since step 2 it is at most 1/1000" in said[0]
    assert 'job.prepare(..., scheduler_every="epoch")' in said[0]


@pytest.mark.parametrize("what", ["logged", "gradient"])
def test_a_number_that_is_not_finite_is_named_once(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    job, model, optimizer = prepared()
    with job:
        for x, y in job.batches(points(), 8, slots=2, epochs=2):
            loss = error(model, x, y)
            loss.backward()
            job.log(loss=loss * (float("nan") if job.step == 1 and what == "logged" else 1.0))
            assert model.bias.grad is not None
            if job.step == 1 and what == "gradient":
                model.bias.grad.fill_(float("inf"))
            optimizer.step()
    said = [text for text in capfd.readouterr().err.splitlines() if text.startswith("warning: ")]
    assert len(said) == 1
    what_said = "loss is nan" if what == "logged" else "the gradient of bias is not finite"
    assert said[0].startswith(f"warning: {what_said} at step 1, slot 0 (worker-0). ")


def test_state_that_is_carried_in_the_graph_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    job, model, optimizer = prepared()
    state = torch.zeros(())
    with job:
        for x, y in job.batches(points(), 8, slots=2, epochs=2):
            state = error(model, x, y) + 0.1 * state
            state.backward(retain_graph=True)
            job.log(loss=state)
            optimizer.step()
    said = [text for text in capfd.readouterr().err.splitlines() if text.startswith("warning: ")]
    assert len(said) == 1
    assert "loss depends on tensors that were computed before this turn" in said[0]


def test_the_error_of_torch_about_the_graph_of_an_earlier_turn_gets_the_remedy() -> None:
    job, model, optimizer = prepared()

    def loop() -> None:
        state = torch.zeros(())
        for x, y in job.batches(points(), 8, slots=2):
            state = error(model, x, y) + 0.1 * state
            state.backward()
            optimizer.step()

    with pytest.raises(RuntimeError, match="a second time") as raised, job:
        loop()
    assert any("Begin such state anew in each turn" in note for note in raised.value.__notes__)


def test_schedulers_with_state_and_chains_are_replayed() -> None:
    with paceline.join(seed=3) as job:
        model, optimizer = line()
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [3])
        job.prepare(model, optimizer, scheduler)
        fit(job, model, optimizer, epochs=4)
        got = optimizer.param_groups[0]["lr"]
    _, plain = line()
    warm = torch.optim.lr_scheduler.LinearLR(plain, 0.1, total_iters=3)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 5)
    scheduler = torch.optim.lr_scheduler.SequentialLR(plain, [warm, cool], [3])
    for _ in range(8):
        plain.step()
        scheduler.step()
    assert got == plain.param_groups[0]["lr"]


# ------------------------------------------------------------------ turns


@pytest.mark.parametrize("zero", ["set_to_none", "in place", "model", "never"])
def test_every_turn_starts_without_gradients_in_every_way_to_zero_them(zero: str) -> None:
    job, model, optimizer = prepared()
    with job:
        for x, y in job.batches(points(), 8, slots=2):
            if zero == "set_to_none":
                optimizer.zero_grad(set_to_none=True)
            elif zero == "in place":
                optimizer.zero_grad(set_to_none=False)
            elif zero == "model":
                model.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    assert weights(model) == fitted()


def test_zero_grad_after_step_gives_the_same_weights() -> None:
    job, model, optimizer = prepared()
    with job:
        for x, y in job.batches(points(), 8, slots=2):
            error(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert weights(model) == fitted()


def test_gradients_may_be_accumulated_within_a_turn() -> None:
    job, model, optimizer = prepared()
    with job:
        for x, y in job.batches(points(), 8, slots=2):
            optimizer.zero_grad()
            for part in range(2):
                (error(model, x[part::2], y[part::2]) / 2).backward()
            optimizer.step()
    assert weights(model) == pytest.approx(fitted(), rel=1e-5)


def test_continue_before_backward_seals_the_slot_empty(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    turns = 0
    with job:
        for x, y in job.batches(points(), 8, slots=2, epochs=2):
            turns += 1
            if turns in (2, 5, 6):  # one slot of step 0, and both of step 2
                continue
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    summary = summary_of(tmp_path / "run")
    assert summary["skipped_slots"] == 3
    assert summary["steps"] == 4
    assert summary["samples"] == 5 * 8

    with paceline.join(seed=3) as job:  # the same computed by hand: the mean is over the slots that are not empty
        model2, optimizer2 = line()
        job.prepare(model2, optimizer2)
        batches = list(_batches_of(job))
    plain, plain_optimizer = nn.Linear(4, 1), None
    plain.load_state_dict(model2.state_dict())
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in ([0], [2, 3], [], [6, 7]):
        plain_optimizer.zero_grad()
        for turn in step:
            (error(plain, *batches[turn]) / len(step)).backward()
        if step:
            plain_optimizer.step()
    assert weights(model) == pytest.approx(weights(plain), rel=1e-5)


def _batches_of(job: paceline.Job) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return the batches of a loop of two epochs, without training."""
    yield from job.batches(points(), 8, slots=2, epochs=2)


def test_step_without_any_gradient_seals_the_slot_empty(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    before = weights(model)
    with job:
        for _ in job.batches(points(), 8, slots=2):
            optimizer.step()
    assert summary_of(tmp_path / "run")["skipped_slots"] == 4
    assert weights(model) == before


def test_each_slot_has_its_own_random_numbers() -> None:
    draws: list[tuple[float, float, float]] = []
    for _ in range(2):
        job, model, optimizer = prepared()
        with job:
            for x, y in job.batches(points(), 8, slots=2):
                draws.append((float(torch.rand(())), float(np.random.rand()), random.random()))
                error(model, x, y).backward()
                optimizer.step()
    assert draws[:4] == draws[4:], "the same job draws the same numbers"
    assert len(set(draws)) == 4


def test_log_is_the_mean_over_the_slots_of_a_step(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    with job:
        for turn, (x, y) in enumerate(job.batches(points(), 8, slots=2)):
            loss = error(model, x, y)
            loss.backward()
            job.log(loss=loss, turn=turn)
            job.log(turn=10 * turn, half=np.float32(0.5))
            optimizer.step()
    metrics = summary_of(tmp_path / "run")["metrics"]
    assert metrics["turn"] == 25.0, "the last value that a turn logs counts; the mean is over turns 2 and 3"
    assert metrics["half"] == 0.5
    assert metrics["loss"] > 0


# ------------------------------------------------------------------ the data


class Items(Dataset[Any]):
    """Samples as dicts."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "x": torch.full((4,), float(index))}


def _indices(data: Any, **options: Any) -> list[list[int]]:
    """Return the positions that a loop reads, without training."""
    job, _, _ = prepared()
    with job:
        loop = job.batches(data, **{"slots": 2, **options})
        return [[int(v) for v in (b["index"] if isinstance(b, dict) else b)] for b in loop]


def test_batches_of_dicts_cover_the_epoch_once() -> None:
    slots = _indices(Items(), batch_size=4)
    assert [len(s) for s in slots] == [4, 4, 2]
    assert sorted(i for s in slots for i in s) == list(range(10))
    assert slots != [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    both = _indices(Items(), batch_size=4, epochs=2)
    assert both[:3] == slots
    assert both[3:] != slots, "each epoch has its own order"


def test_the_arguments_of_batches_set_order_remainder_and_collation() -> None:
    assert _indices(Items(), batch_size=4, shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert _indices(Items(), batch_size=4, shuffle=False, drop_last=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    backwards = _indices(
        Items(), batch_size=4, shuffle=False, collate_fn=lambda items: [i["index"] for i in items][::-1]
    )
    assert backwards == [[3, 2, 1, 0], [7, 6, 5, 4], [9, 8]]
    assert _indices(list(range(5)), batch_size=2, shuffle=False) == [[0, 1], [2, 3], [4]]


def test_batches_takes_the_data_set_and_options_of_a_loader_unless_an_argument_overrides_them() -> None:
    in_order = DataLoader(Items(), batch_size=4, shuffle=False, drop_last=True)
    assert _indices(in_order) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    shuffled = DataLoader(Items(), batch_size=4, shuffle=True)
    assert _indices(shuffled) == _indices(Items(), batch_size=4)
    collated = DataLoader(Items(), batch_size=5, collate_fn=lambda items: [i["index"] for i in items][::-1])
    assert _indices(collated) == [[4, 3, 2, 1, 0], [9, 8, 7, 6, 5]]
    assert [len(b) for b in _indices(in_order, batch_size=3)] == [3, 3, 3], "an argument overrides the loader's"


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> tuple[float, float, float, int]:
        return float(torch.rand(())), float(np.random.rand()), random.random(), index


def with_noise(samples: list[Any]) -> Any:
    return [column + torch.randn(len(column)) for column in default_collate(samples)]


@pytest.mark.parametrize("collate_fn", [None, with_noise], ids=["samples", "collate"])
def test_loader_processes_give_the_same_batches(collate_fn: Callable[[list[Any]], Any] | None) -> None:
    seen = []
    for loader_workers in (0, 2):
        job, _, _ = prepared()
        with job:
            loop = job.batches(Noisy(), 4, slots=2, epochs=2, collate_fn=collate_fn, loader_workers=loader_workers)
            seen.append([torch.stack([v.double() for v in batch]) for batch in loop])
    assert len(seen[0]) == len(seen[1]) == 8
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_an_error_in_the_data_set_reaches_the_script() -> None:
    class Broken(Items):
        def __getitem__(self, index: int) -> dict[str, Any]:
            raise OSError("no such file")

    for loader_workers in (0, 2):
        job, _, _ = prepared()
        with job, pytest.raises(OSError, match="no such file"):
            for _ in job.batches(Broken(), 4, loader_workers=loader_workers):
                pass


# ------------------------------------------------------------------ validation, saving, stopping


def test_validation_runs_on_committed_versions_and_does_not_change_the_training(tmp_path: Path) -> None:
    def run(validated: bool) -> tuple[list[float], list[int], paceline.Job]:
        with paceline.join(seed=3) as job:
            model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            job.prepare(model, optimizer)
            sizes: list[int] = []

            def check(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
                assert not any(module.training for module in model.modules())
                assert not torch.is_grad_enabled()
                torch.rand(7)
                np.random.rand(3)
                random.random()
                sizes.append(len(x))
                return {"mean": error(model, x, y), "each": (model(x) - y).square().squeeze(1)}

            if validated:
                assert job.validate(points(10), every=2, batch_size=4)(check) is check
            for x, y in job.batches(points(), 8, slots=2, epochs=3):
                assert model.training
                error(model, x, y).backward()
                optimizer.step()
            if validated:
                assert job.metrics["mean"] == pytest.approx(job.metrics["each"], rel=1e-5)
                model.eval()
                assert job.metrics["mean"] == pytest.approx(error(model, *points(10).tensors).item(), rel=1e-5)
        return weights(model), sizes, job

    plain, _, _ = run(False)
    checked, sizes, _ = run(True)
    assert checked == plain, "validation changed the training"
    assert sizes == [4, 4, 2] * 3, "versions 2, 4 and 6, once each"


def test_evaluate_between_and_after_loops_uses_the_current_weights() -> None:
    job, model, optimizer = prepared()

    def check(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"error": error(model, x, y)}

    with job:
        before = job.evaluate(check, points())
        assert before["error"] == pytest.approx(error(model, *points().tensors).item(), rel=1e-5)
        fit(job, model, optimizer)
        after = job.evaluate(check, points(), batch_size=5)
        assert after["error"] == pytest.approx(error(model, *points().tensors).item(), rel=1e-5)
        assert after["error"] < before["error"]
        fit(job, model, optimizer)
        again = job.evaluate(check, DataLoader(points(), batch_size=7))
        assert again["error"] < after["error"]
        assert job.step == 4


def _distance(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"error": (model(x) - y).square().mean()}


def test_metrics_in_the_first_loop_are_the_validation_of_every_steps_ago() -> None:
    job, model, optimizer = prepared()
    job.validate(points(), every=3)(_distance)
    seen: dict[int, int] = {}
    values: set[float] = set()
    with job:
        for x, y in job.batches(points(), 8, slots=2, epochs=6):
            if job.step < 6:
                with pytest.raises(MissingMetricError, match=f"no validation is seen yet at step {job.step}"):
                    job.metrics["error"]
            else:
                values.add(job.metrics["error"])
            seen[job.step] = job.metrics.step
            error(model, x, y).backward()
            optimizer.step()
        assert job.metrics.step == 12
        assert job.metrics["error"] < min(values)
    assert seen == {step: step // 3 * 3 - 3 if step >= 6 else -1 for step in range(12)}


def test_metrics_without_a_validation_name_the_remedy() -> None:
    job, *_ = prepared()
    with job, pytest.raises(MissingMetricError, match="no validation was declared"):
        job.metrics["error"]


def test_patience_around_evaluate_ends_a_nested_epoch_loop(tmp_path: Path) -> None:
    """The way of plain PyTorch: the loop of epochs ends, and the script goes on."""

    def patient(run: Path) -> list[float]:
        job, model, optimizer = prepared(dir=run)
        best, bad, found = float("inf"), 0, []
        with job:
            for _ in range(50):
                fit(job, model, optimizer)
                found.append(job.evaluate(_distance, points(20))["error"])
                bad = 0 if found[-1] < best - 0.05 else bad + 1
                best = min(best, found[-1])
                if bad == 2:
                    break
            assert job.metrics == {"error": found[-1]}
            assert job.metrics.step == job.step == 2 * len(found)
        return found

    found = patient(tmp_path / "one")
    assert 3 < len(found) < 50
    assert patient(tmp_path / "two") == found
    one, two = summary_of(tmp_path / "one"), summary_of(tmp_path / "two")
    assert one["metrics"] == {"error": found[-1]}
    assert one["metric_steps"] == {"error": one["steps"]}
    assert (one["steps"], one["digest"]) == (two["steps"], two["digest"])


def test_save_writes_a_plain_state_dict(tmp_path: Path) -> None:
    with paceline.join(seed=3) as job:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.prepare(model, optimizer)
        fit(job, model, optimizer)
        job.save(tmp_path / "deep" / "model.safetensors")
        assert [p.name for p in (tmp_path / "deep").iterdir()] == ["model.safetensors"]
    loaded = safetensors.torch.load_file(tmp_path / "deep" / "model.safetensors")
    fresh = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    fresh[2].weight = fresh[0].weight
    fresh.load_state_dict(loaded, strict=True)
    assert paceline.digest(fresh) == paceline.digest(model)


def test_save_under_another_suffix_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    job, model, optimizer = prepared()
    with job:
        fit(job, model, optimizer)
        with pytest.raises(UsageError, match=r"torch\.load cannot read"):
            job.save(tmp_path / "model.pt")
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt.safetensors"]
    assert torch.equal(safetensors.torch.load_file(tmp_path / "model.pt.safetensors")["weight"], model.weight)


def test_save_twice_writes_the_newer_weights(tmp_path: Path) -> None:
    job, model, optimizer = prepared()
    with job:
        for _ in range(2):
            fit(job, model, optimizer)
            job.save(tmp_path / "model.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["weight"], model.weight)


def test_stop_ends_the_job_after_the_current_step(tmp_path: Path) -> None:
    job, model, optimizer = prepared(dir=tmp_path / "run")
    with job:
        turns = 0
        for x, y in job.batches(points(), 8, slots=2, epochs=10):
            turns += 1
            optimizer.zero_grad()
            error(model, x, y).backward()
            if job.step == 2:
                job.stop("good enough")
            optimizer.step()
        assert turns == 6
        assert job.step == 3
        assert fit(job, model, optimizer) == 0
    assert weights(model) == _first_steps(3)
    summary = summary_of(tmp_path / "run")
    assert summary["steps"] == 3
    assert summary["stopped"] == "good enough"


def _first_steps(count: int) -> list[float]:
    job, model, optimizer = prepared()
    with job:
        for x, y in job.batches(points(), 8, slots=2, epochs=10):
            if job.step == count:
                break
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    return weights(model)


def test_properties_are_read_only() -> None:
    job, model, optimizer = prepared()
    with job:
        assert job.step == 0
        fit(job, model, optimizer)
        assert job.step == 2
        assert job.lead is True
        for name in ("step", "epoch", "lead", "metrics"):
            with pytest.raises(AttributeError):
                setattr(job, name, 1)
        assert dict(job.metrics) == {}


def test_prepare_returns_what_it_was_given() -> None:
    with paceline.join() as job:
        model, optimizer = line()
        assert job.prepare(model, optimizer) == (model, optimizer)


# ------------------------------------------------------------------ modes, precision, compilation


@pytest.mark.parametrize("mode", ["ssp:0", "ssp:3", "asp"])
def test_one_process_trains_in_every_mode(mode: str, tmp_path: Path) -> None:
    job, model, optimizer = prepared(mode=mode, dir=tmp_path / mode.replace(":", "-"))
    with job:
        for x, y in job.batches(points(), 8, epochs=2):
            optimizer.zero_grad()
            error(model, x, y).backward()
            optimizer.step()
    assert summary_of(tmp_path / mode.replace(":", "-"))["slots"] == 1
    if mode == "ssp:0":
        assert weights(model) == fitted(slots=1, epochs=2)


def test_a_step_that_the_fp16_scaler_skips_seals_an_empty_slot(tmp_path: Path) -> None:
    with paceline.join(seed=3, dir=tmp_path / "run") as job:
        model, optimizer = line()
        job.prepare(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for turns, (x, y) in enumerate(job.batches(points(), 8, slots=1, epochs=2), start=1):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = error(model, x, y)
            if turns == 3:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if turns % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0, "the scaler saw the infinity"
    summary = summary_of(tmp_path / "run")
    assert summary["skipped_slots"] == 1
    assert all(np.isfinite(weights(model)))

    with paceline.join(seed=3) as job:
        plain, _ = line()
        job.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
        batches = list(job.batches(points(), 8, slots=1, epochs=2))
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for turn, (x, y) in enumerate(batches):
        if turn == 2:
            continue
        plain_optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = error(plain, x, y)
        (loss * 1024.0).backward()
        for p in plain.parameters():
            assert p.grad is not None
            p.grad /= 1024.0
        plain_optimizer.step()
    assert weights(model) == pytest.approx(weights(plain), rel=1e-2)


def test_a_compiled_model_trains_and_saves_like_the_plain_one(tmp_path: Path) -> None:
    with paceline.join(seed=3) as job:
        model, optimizer = line()
        compiled: Any = torch.compile(model, backend="aot_eager")
        job.prepare(compiled, optimizer)
        fit(job, compiled, optimizer)
        job.save(tmp_path / "model.safetensors")
        assert paceline.digest(compiled) == paceline.digest(model)
    torch.compiler.reset()
    assert weights(model) == pytest.approx(fitted(), rel=1e-5)
    fresh = nn.Linear(4, 1)
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"), strict=True)
    assert weights(fresh) == weights(model)


def test_a_model_compiled_after_prepare_trains_like_the_plain_one() -> None:
    job, model, optimizer = prepared()
    with job:
        compiled: Any = torch.compile(model, backend="aot_eager")
        fit(job, compiled, optimizer)
    torch.compiler.reset()
    assert weights(model) == pytest.approx(fitted(), rel=1e-5)


def test_frozen_parameters_never_move_and_unfrozen_ones_do() -> None:
    with paceline.join(seed=3) as job:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        job.prepare(model, optimizer)
        before = weights(model[0]), weights(model[1])
        fit(job, model, optimizer)
        assert weights(model[0]) == before[0]
        assert weights(model[1]) != before[1]


def test_the_embedded_job_uses_the_environment_over_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PACELINE_SEED", "11")
        patch.setenv("PACELINE_MODE", "ssp:2")
        patch.setenv("PACELINE_SLOTS", "3")
        with paceline.join(seed=3, mode="bsp", dir=tmp_path / "run") as job:
            model, optimizer = line()
            job.prepare(model, optimizer)
            fit(job, model, optimizer, slots=2)
    summary = summary_of(tmp_path / "run")
    assert (summary["seed"], summary["mode"], summary["slots"]) == (11, "ssp:2", 3)


def test_the_first_line_on_standard_error_shows_mode_slots_and_batch(capfd: pytest.CaptureFixture[str]) -> None:
    job, model, optimizer = prepared()
    with job:
        fit(job, model, optimizer)
    out, err = capfd.readouterr()
    assert err.splitlines()[0] == "bsp · 2 slots × 8 = batch 16 · 1 worker · seed 3 · embedded"
    assert out.splitlines()[-1] == f"digest         {paceline.digest(model)}", "standard output has only the results"


def test_usage_errors_are_value_errors() -> None:
    assert issubclass(UsageError, ValueError)
    with contextlib.suppress(LoopError):
        raise LoopError("x")
