"""What Paceline refuses, and that each refusal names the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.kit.line import error, line, points, prepared
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import paceline
from paceline.errors import JobFailedError, LoopError, UsageError

Body = Callable[[paceline.Job, nn.Linear, torch.optim.SGD, torch.Tensor, torch.Tensor], None]


# ------------------------------------------------------------------ in the loop


def test_hyper_parameters_that_the_optimizer_refuses_fail_the_job_and_name_the_parameters() -> None:
    job = paceline.join(seed=3)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    job.prepare(model, optimizer)

    def loop() -> None:
        for x, y in job.batches(points(), 8):
            optimizer.param_groups[0]["betas"] = (0.9,)
            error(model, x, y).backward()
            optimizer.step()

    with pytest.raises(JobFailedError, match="Adam cannot update weight, bias: ValueError"), job:
        loop()


def _no_step(job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor) -> None:
    error(model, x, y).backward()


def _two_steps(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    error(model, x, y).backward()
    optimizer.step()
    optimizer.step()


def _closure(job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor) -> None:
    def closure() -> float:
        return float(error(model, x, y))

    optimizer.step(closure)


def _state(job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.state_dict()


def _load_state(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimizer.load_state_dict({})


def _add_group(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def _write_before(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    error(model, x, y).backward()
    with torch.no_grad():
        model.weight.add_(1.0)
    optimizer.step()


def _write_after(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    error(model, x, y).backward()
    optimizer.step()
    nn.init.zeros_(model.weight)


def _other_optimizer(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    other = torch.optim.Adam(model.parameters())
    error(model, x, y).backward()
    other.step()
    optimizer.step()


def _replace(job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor) -> None:
    model.weight = nn.Parameter(torch.zeros(1, 4))
    error(model, x, y).backward()
    optimizer.step()


def _move(job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor) -> None:
    model.weight.data = model.weight.data.clone()
    error(model, x, y).backward()
    optimizer.step()


def _save(job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor) -> None:
    job.save("model.safetensors")


def _another_loop(
    job: paceline.Job, model: nn.Linear, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> None:
    job.batches(points(), 8)


IN_THE_LOOP: list[tuple[Body, str]] = [
    (_no_step, r"no optimizer.step\(\).*Paceline accumulates for you: use slots="),
    (_two_steps, r"two optimizer.step\(\)"),
    (_closure, r"step\(closure\) is refused: compute the loss and call backward\(\) in the loop"),
    (_state, r"use job.save\(\)"),
    (_load_state, r"use job.save\(\)"),
    (_add_group, r"before job.prepare"),
    (_write_before, r"wrote to weight.*prepared optimizer"),
    (_write_after, r"wrote to weight.*prepared optimizer"),
    (_other_optimizer, r"a second optimizer \(Adam\) stepped in the loop.*param groups"),
    (_replace, r"weight was replaced after prepare\(\): prepare the model in its final form"),
    (_save, r"inside of a loop .*: call it before or after the loop"),
    (_another_loop, r"inside of a loop .*: call it before or after the loop"),
    (_move, r"weight was .*prepare the model in its final form"),
]


@pytest.mark.parametrize(("body", "remedy"), IN_THE_LOOP, ids=[b.__name__.strip("_") for b, _ in IN_THE_LOOP])
def test_a_mistake_in_the_loop_raises_with_its_remedy(body: Body, remedy: str) -> None:
    job, model, optimizer = prepared()

    def loop() -> None:
        for x, y in job.batches(points(), 8, slots=2):
            body(job, model, optimizer, x, y)

    with job, pytest.raises(LoopError, match=remedy):
        loop()


def test_a_sparse_gradient_is_refused() -> None:
    with paceline.join() as job:
        model = nn.Embedding(8, 3, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.prepare(model, optimizer)

        def loop() -> None:
            for (index,) in job.batches(TensorDataset(torch.arange(8)), 4):
                model(index).sum().backward()
                optimizer.step()

        with pytest.raises(LoopError, match="weight has a sparse gradient: use sparse=False"):
            loop()


def test_a_script_that_steps_a_prepared_scheduler_is_refused() -> None:
    with paceline.join() as job:
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        job.prepare(model, optimizer, scheduler)

        def loop() -> None:
            for x, y in job.batches(points(), 8):
                error(model, x, y).backward()
                optimizer.step()
                scheduler.step()

        with pytest.raises(LoopError, match=r"remove scheduler.step\(\) from the loop"):
            loop()


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")  # torch warns about the order as well
@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("order", ["step first", "scheduler first"])
def test_a_script_that_steps_another_scheduler_in_the_loop_is_refused(made: str, order: str) -> None:
    with paceline.join() as job:
        model, optimizer = line()
        if made == "before":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        job.prepare(model, optimizer)
        if made == "after":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

        def loop() -> None:
            for x, y in job.batches(points(), 8):
                error(model, x, y).backward()
                if order == "step first":
                    optimizer.step()
                scheduler.step()
                if order == "scheduler first":
                    optimizer.step()

        with pytest.raises(LoopError, match=r"pass it to job.prepare\(model, optimizer, scheduler\)"):
            loop()


def test_a_step_outside_of_the_loop_is_refused() -> None:
    job, _, optimizer = prepared()
    with job, pytest.raises(LoopError, match=r"`for x, y in job\.batches\(loader, slots=4\):`"):
        optimizer.step()


@pytest.mark.parametrize("call", ["step", "log"])
def test_a_loop_over_the_loader_itself_is_refused_with_the_line_to_write(call: str) -> None:
    job, model, optimizer = prepared()
    train_loader = DataLoader(points(), batch_size=8)

    def loop() -> None:
        for number, (x, y) in enumerate(train_loader):
            loss = error(model, x, y)
            if call == "log":
                job.log(loss=loss, number=number)
            loss.backward()
            optimizer.step()

    with job, pytest.raises(LoopError) as refused:
        loop()
    assert "outside of a turn" in str(refused.value)
    assert "`for number, (x, y) in enumerate(job.batches(train_loader, slots=4)):`" in str(refused.value)


def test_a_log_after_step_is_refused() -> None:
    job, model, optimizer = prepared()

    def loop() -> None:
        for x, y in job.batches(points(), 8):
            loss = error(model, x, y)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)

    with job, pytest.raises(LoopError, match=r"job.log\(\) after optimizer.step\(\)"):
        loop()


# ------------------------------------------------------------------ at prepare


class Custom(torch.optim.SGD):
    pass


def _shared_storage() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = nn.Parameter(first.weight.data)
    return nn.Sequential(first, second)


def _views() -> nn.Module:
    memory = torch.zeros(6)
    model = nn.Module()
    model.first, model.second = nn.Parameter(memory[:3]), nn.Parameter(memory[3:])
    return model


def _used(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer


def _strange(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)


def _linear() -> nn.Module:
    return nn.Linear(4, 1)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


AT_PREPARE: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Any], str]] = {
    "LBFGS": (_linear, lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS does not run on servers.*use one of"),
    "NAdam": (_linear, lambda m: torch.optim.NAdam(m.parameters()), "NAdam does not run on servers.*SGD, Adam"),
    "custom": (_linear, lambda m: Custom(m.parameters(), lr=0.1), "Custom does not run on servers.*use one of"),
    "lazy": (lambda: nn.LazyLinear(3), _sgd, "lazy.*pass one batch through the model, then prepare"),
    "lazy buffer": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.LazyBatchNorm1d(affine=False)),
        _sgd,
        "lazy.*pass one batch through the model, then prepare",
    ),
    "shared storage": (_shared_storage, _sgd, "1.weight and 0.weight.*share memory: tie them by assigning"),
    "views": (_views, _sgd, "second and first.*share memory"),
    "strange parameter": (_linear, _strange, r"1 parameter\(s\) that are not the model's"),
    "used optimizer": (_linear, _used, r"taken steps already: call job.prepare\(\) before its first step"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), _sgd, "meta device: give it memory first"),
    "complex": (lambda: nn.Linear(2, 2, dtype=torch.complex64), _sgd, "dtype torch.complex64.*use one of"),
}


@pytest.mark.parametrize("name", AT_PREPARE)
def test_an_unsupported_model_or_optimizer_is_refused_at_prepare(name: str) -> None:
    make_model, make_optimizer, remedy = AT_PREPARE[name]
    with paceline.join() as job:
        model = make_model()
        with pytest.raises(UsageError, match=remedy):
            job.prepare(model, make_optimizer(model))


def test_wrong_arguments_of_prepare_are_refused() -> None:
    with paceline.join() as job:
        model, optimizer = line()
        with pytest.raises(UsageError, match="clip_norm must be greater than 0, not 0"):
            job.prepare(model, optimizer, clip_norm=0)
        stranger = torch.optim.lr_scheduler.StepLR(line()[1], 1)
        with pytest.raises(UsageError, match="belongs to another optimizer"):
            job.prepare(model, optimizer, stranger)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with pytest.raises(UsageError, match=r"ReduceLROnPlateau needs a metric.*between phases"):
            job.prepare(model, optimizer, plateau)
        job.prepare(model, optimizer)
        with pytest.raises(UsageError, match="one model with one optimizer"):
            job.prepare(*line())


# ------------------------------------------------------------------ at join and batches


def test_a_second_join_is_refused_while_a_job_is_open() -> None:
    with (
        paceline.join(),
        pytest.raises(UsageError, match=r"a job is open in this process: close it \(job.close\(\)"),
    ):
        paceline.join()
    paceline.join().close()


@pytest.mark.parametrize("mode", ["sync", "ssp", "ssp:x", "BSP", "asp:3", ""])
def test_an_unknown_mode_is_refused(mode: str) -> None:
    with pytest.raises(UsageError, match="is not known; use bsp, ssp:K"):
        paceline.join(mode=mode)


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Any) -> None:
    paceline.join(dir=tmp_path / "run").close()
    with pytest.raises(UsageError, match=r"holds a run already: name another one \(--dir, or join\(dir="):
        paceline.join(dir=tmp_path / "run")
    paceline.join().close()


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("PACELINE_SEED", "seven", "PACELINE_SEED must be a whole number, not 'seven'"),
        ("PACELINE_SLOTS", "0", "slots must be at least 1, not 0"),
        ("PACELINE_MODE", "nsync", "mode 'nsync' is not known"),
        ("PACELINE_TIMEOUT_S", "soon", "PACELINE_TIMEOUT_S must be a number of seconds, not 'soon'"),
        ("PACELINE_TIMEOUT_S", "-1", "PACELINE_TIMEOUT_S must be positive"),
        ("PACELINE_THREADS", "-2", "PACELINE_THREADS must be at least 1"),
    ],
)
def test_a_wrong_environment_variable_is_refused_at_join(
    variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(variable, value)
        with pytest.raises(UsageError, match=named):
            paceline.join()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def _weighted() -> DataLoader[Any]:
    return DataLoader(points(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 32, 32))


def _own_batches() -> DataLoader[Any]:
    class Mine(BatchSampler):
        pass

    return DataLoader(points(), batch_sampler=Mine(range(32), 4, False))


BATCHES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "iterable": (Stream, {"batch_size": 4}, "IterableDataset.*map-style Dataset"),
    "a loader of an iterable": (lambda: DataLoader(Stream(), batch_size=2), {}, "map-style Dataset|data set instead"),
    "a generator": (lambda: (i for i in range(3)), {"batch_size": 1}, "has no length: give a map-style Dataset"),
    "no data": (lambda: points(0), {"batch_size": 4}, "the data set is empty"),
    "no batch size": (points, {}, "batch_size is missing"),
    "batch size 0": (points, {"batch_size": 0}, "batch_size must be at least 1, not 0"),
    "batch size 1.5": (points, {"batch_size": 1.5}, "batch_size must be .*not 1.5"),
    "slots 0": (points, {"batch_size": 4, "slots": 0}, "slots must be at least 1, not 0"),
    "slots 1.5": (points, {"batch_size": 4, "slots": 1.5}, "slots must be .*not 1.5"),
    "epochs -1": (points, {"batch_size": 4, "epochs": -1}, "epochs must be 0 or more, not -1"),
    "epochs 0.5": (points, {"batch_size": 4, "epochs": 0.5}, "epochs must .*not 0.5"),
    "loader_workers -1": (points, {"batch_size": 4, "loader_workers": -1}, "loader_workers must be 0 or more"),
    "nothing but a remainder": (points, {"batch_size": 64, "drop_last": True}, "drop_last"),
    "a sampler": (_weighted, {}, "WeightedRandomSampler.*pass its data set instead"),
    "a batch sampler": (_own_batches, {}, "batch_sampler.*pass its data set instead"),
    "a loader without batches": (lambda: DataLoader(points(), batch_size=None), {}, "pass its data set instead"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_unsupported_data_or_options_are_refused_at_batches(name: str) -> None:
    make_data, options, remedy = BATCHES[name]
    job, _, _ = prepared()
    with job, pytest.raises(UsageError, match=remedy):
        job.batches(make_data(), **options)


def test_calls_before_prepare_and_after_close_are_refused() -> None:
    job = paceline.join()
    with job:
        with pytest.raises(UsageError, match=r"call job\.prepare"):
            job.batches(points(), 4)
        with pytest.raises(UsageError, match=r"call job\.prepare"):
            job.save("nothing.safetensors")
        with pytest.raises(UsageError, match="every must be at least 1"):
            job.validate(points(), every=0)
        with pytest.raises(UsageError, match=r"call job\.prepare"):
            job.evaluate(lambda model, x, y: {}, points())
    job.close()
    for call in (lambda: job.prepare(*line()), lambda: job.batches(points(), 4), lambda: job.save("x"), job.stop):
        with pytest.raises(UsageError, match=r"closed: call paceline.join\(\) again"):
            call()


def test_a_metric_of_a_wrong_shape_or_type_is_refused() -> None:
    job, _, _ = prepared()
    with job, pytest.raises(UsageError, match=r"bad returned m of shape \(32, 2\) for 32 samples: return a scalar"):
        job.evaluate(_bad, points())
    job, _, _ = prepared()
    with job, pytest.raises(UsageError, match="worse must return a dict of metrics by name, not float"):
        job.evaluate(_worse, points())


def _bad(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"m": torch.zeros(len(x), 2)}


def _worse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    return 1.0
