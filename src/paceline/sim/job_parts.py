"""Parts of a simulated job that random numbers choose: its phases, its model and its network."""

from __future__ import annotations

from random import Random

import msgspec

from paceline.sim.network import Weather
from paceline.types import Kind, ModelSpec, OptimizerSpec, PhaseSpec, TensorSpec


def make_phases(rng: Random, slots: int) -> tuple[PhaseSpec, ...]:
    """One to three phases of a few steps of `slots` slots."""
    phases = []
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        batch = rng.randint(1, 4)
        phases.append(
            PhaseSpec(
                number=number,
                data_len=rng.choice((0, 1, 7, 12, 20)) if rng.random() < 0.2 else rng.randint(1, batch * slots * 3),
                batch_size=batch,
                slots=None,
                epochs=rng.randint(1, 3),
                shuffle=True,
                drop_last=rng.random() < 0.3,
            )
        )
    return tuple(phases)


def with_steps(rng: Random, phases: tuple[PhaseSpec, ...]) -> tuple[PhaseSpec, ...]:
    """Some jobs have phases of a number of steps, which share the epochs of one data set."""
    if rng.random() < 0.75:
        return phases
    return tuple(
        msgspec.structs.replace(phases[0], number=number, steps=rng.randint(1, 5))
        for number in range(len(phases) + rng.randint(0, 2))
    )


def make_model(rng: Random) -> ModelSpec:
    """A model of one to three parameters, perhaps with buffers."""
    tensors = [
        TensorSpec(f"p{i}", (rng.choice((10, 5_000, 30_000)),), "float32", Kind.PARAMETER, 0)
        for i in range(rng.randint(1, 3))
    ]
    if rng.random() < 0.3:
        tensors.append(TensorSpec("frozen", (40,), "float32", Kind.FROZEN))
    if rng.random() < 0.3:
        tensors.append(TensorSpec("mean", (7,), "float32", Kind.MEAN))
    if rng.random() < 0.3:
        tensors.append(TensorSpec("count", (), "int64", Kind.LAST))
    return ModelSpec(tuple(tensors), OptimizerSpec("SGD", ({"lr": 0.1},)), None, rng.random() < 0.6)


def make_weather(rng: Random) -> Weather:
    """A network that loses, repeats, reorders and delays messages."""
    return Weather(
        drop=rng.choice((0.0, 0.02, 0.1, 0.2)),
        duplicate=rng.choice((0.0, 0.02, 0.1, 0.3)),
        reorder=rng.random() < 0.6,
        min_delay_s=0.0005,
        mean_delay_s=rng.choice((0.001, 0.005, 0.03, 0.1)),
    )
