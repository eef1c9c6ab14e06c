"""What a seed means: dials, data, network and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.messages import JobArgs, ValidatorSpec
from paceline.sim.network import Weather
from paceline.types import Kind, ModelSpec, OptimizerSpec, PhaseSpec, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What workers do now and then, as probabilities of a turn."""

    provisional: float = 0.7  # push blocks before the seal
    push_again: float = 0.2  # a pushed gradient changes and is pushed with the next rev
    hand_back: float = 0.0  # abandon the turn after a partial push
    vanish: float = 0.0  # die after a partial push
    cut_off: float = 0.0  # the coordinator loses its session with the worker just after the seal
    empty: float = 0.0  # seal with weight 0
    partly_absent: float = 0.1  # no gradient for some block
    disk_full: float = 0.0  # a part of a checkpoint, or its end, cannot be written
    mangled: float = 0.0  # a push claims a version that nobody knows, so the server refuses it
    mean_turn_s: float = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at a time. `lasts_s` is how long, where that means something."""

    at_s: float
    kind: str
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan:
    """Some worker stops the job when it has a slot of this step (or a later one) in hand."""

    step: int
    at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule, complete: the same value gives the same run."""

    seed: int
    job: JobArgs
    model: ModelSpec
    cluster: ClusterSpec
    phases: tuple[PhaseSpec, ...]
    validators: tuple[ValidatorSpec, ...] = ()
    evaluate: int = -1  # number of the validator that scripts run by hand after each phase
    weather: Weather = field(default_factory=Weather)
    habits: Habits = field(default_factory=Habits)
    speeds: tuple[float, ...] = (1.0,)
    faults: tuple[Fault, ...] = ()
    heal_at_s: float = 0.0
    stop: StopPlan | None = None
    careful: bool = False  # servers are lost one at a time, and not before every block has all its copies again
    single_thread: bool = False  # a worker hears nothing while it computes, but its heart beats
    part_nbytes: int = 1 << 30  # answers to pulls come in parts of this size
    resend_s: float = 1.0
    tick_s: float = 0.2
    generation: int = 2
    bound_s: float = 300.0

    def __str__(self) -> str:
        """One line."""
        steps = "+".join(f"{p.data_len}/{p.batch_size}x{p.epochs}" for p in self.phases)
        return (
            f"seed {self.seed}: {self.job.mode} slots={self.job.slots} det={self.model.deterministic} "
            f"w={self.cluster.workers} s={self.cluster.servers} r={self.cluster.replicas}"
            f"{' careful' * self.careful} hold={self.cluster.held} data={steps} "
            f"stop={self.stop} validators={[v.every for v in self.validators]} evaluate={self.evaluate} "
            f"{self.weather} {[(round(f.at_s, 2), f.kind, round(f.lasts_s, 2)) for f in self.faults]}"
        )


FAULTS = (
    "kill",
    "pause",
    "pause",
    "hang",
    "cut",
    "disconnect",
    "join",
    "leave",
    "pause-coordinator",
    "pause-server",
    "kill-coordinator",
    "kill-coordinator",
    "kill-server",
    "kill-server",
    "power-cut",
    "damage",
    "ghost",
)
SERVER_FAULTS = ("kill-server", "kill-server", "pause-server", "cut-server", "cut-servers", "cut-servers", "scale")
"""Besides, where blocks have copies."""


def make_scenario(
    seed: int,
    *,
    mode: str | None = None,
    workers: int | None = None,
    servers: int | None = None,
    replicas: int | None = None,
) -> Scenario:
    """Everything that `seed` says; arguments that are given win over it."""
    rng = Random(f"scenario {seed}")
    mode_ = rng.choice(("bsp", "bsp", "bsp", "ssp:0", "ssp:1", "ssp:3", "asp"))
    workers_, servers_ = rng.randint(1, 6), rng.randint(1, 3)
    mode_, workers_, servers_ = mode or mode_, workers or workers_, servers or servers_
    chance = Random(f"copies {seed}")
    replicas_ = chance.choice((0, 1, 1, 2)) if replicas is None else replicas
    if replicas_ and servers is None:
        servers_ = max(servers_, replicas_ + chance.randint(1, 2))
    replicas_ = min(replicas_, servers_ - 1)
    careful = replicas_ > 0 and chance.random() < 0.5
    slots = rng.randint(1, 6) if mode_ == "bsp" else None
    if rng.random() < 0.1:
        slots = rng.randint(2, 3)  # a window with several slots a step
    phases = _phases(rng, slots or 1)
    if replicas_ and chance.random() < 0.15:  # long enough for copies to be made, and lost again
        phases = tuple(msgspec.structs.replace(p, epochs=4 * p.epochs) for p in phases)
    calm = rng.random() < 0.15
    mean_turn = rng.choice((0.02, 0.08, 0.3))
    speeds = tuple(rng.choice((1.0, 1.0, 1.0, 4.0)) * rng.uniform(0.7, 1.4) for _ in range(workers_))
    slots_in_all = sum(-(-p.data_len // p.batch_size) * p.epochs for p in phases)
    length = 0.5 + slots_in_all * mean_turn * 1.5 / workers_
    faults = [] if calm else [_fault(rng, length) for _ in range(rng.randint(0, 6))]
    if careful:
        faults = [f for f in faults if f.kind not in ("power-cut", "damage")]
    if replicas_ or chance.random() < 0.3:
        faults += [_fault(chance, length, SERVER_FAULTS) for _ in range(chance.randint(0, 5))]
    weather = Weather() if calm else _weather(rng)
    stop = None
    if rng.random() < 0.2:
        stop = StopPlan(step=rng.randint(0, max(1, slots_in_all // (slots or 1))), at_once=rng.random() < 0.5)
    validators = tuple(
        ValidatorSpec(i, f"v{i}", rng.choice((1, 2, 3, 5)), rng.randint(0, 20), rng.randint(3, 8))
        for i in range(rng.choice((0, 0, 1, 2)))
    )
    evaluate = -1
    if rng.random() < 0.2:
        evaluate = len(validators)
        validators += (ValidatorSpec(evaluate, "by hand", 0, rng.randint(0, 12), 4),)
    turns = slots_in_all + sum(
        -(-v.data_len // v.batch_size) * (len(phases) + (slots_in_all // v.every if v.every else 0)) for v in validators
    )
    return Scenario(
        seed=seed,
        job=JobArgs(seed, mode_, slots, 1),
        model=_model(rng),
        cluster=ClusterSpec(
            workers=workers_,
            servers=servers_,
            hold=rng.choice((None, None, 1, 2, 3)),
            max_losses=1000,
            heartbeat_s=0.5,
            heartbeat_timeout_s=4.0,
            grace_s=0.3,
            rewinds=True,
            checkpoint_steps=rng.choice((0, 1, 2, 3, 5, 8)),
            checkpoint_s=rng.choice((0.0, 0.0, 1.0)),
            keep_checkpoints=rng.randint(1, 3),
            replicas=replicas_,
            reach_s=chance.choice((1.5, 3.0)),
        ),
        phases=phases,
        validators=validators,
        evaluate=evaluate,
        weather=weather,
        habits=_habits(rng, mean_turn, calm=calm),
        speeds=speeds,
        faults=tuple(sorted(faults, key=lambda f: f.at_s)),
        heal_at_s=length + 2.0,
        stop=stop,
        careful=careful,
        single_thread=rng.random() < 0.6,
        part_nbytes=rng.choice((1, 1 << 30)),
        # One worker, the slowest, does everything that is left; before that, others fall silent and are evicted.
        bound_s=60.0
        + 1.5 * turns * (1.5 * mean_turn * max(speeds) + (12 + 12 * (replicas_ > 0)) * weather.mean_delay_s),
    )


def _phases(rng: Random, slots: int) -> tuple[PhaseSpec, ...]:
    phases = []
    for number in range(rng.choice((1, 1, 2, 3))):
        batch = rng.randint(1, 4)
        phases.append(
            PhaseSpec(
                number=number,
                data_len=rng.choice((0, 1, 7, 12, 20)) if rng.random() < 0.2 else rng.randint(1, batch * slots * 4),
                batch_size=batch,
                slots=None,
                epochs=rng.randint(1, 3),
                shuffle=True,
                drop_last=rng.random() < 0.3,
            )
        )
    return tuple(phases)


def _model(rng: Random) -> ModelSpec:
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


def _weather(rng: Random) -> Weather:
    return Weather(
        drop=rng.choice((0.0, 0.02, 0.1, 0.2)),
        duplicate=rng.choice((0.0, 0.02, 0.1, 0.3)),
        reorder=rng.random() < 0.6,
        min_delay_s=0.0005,
        mean_delay_s=rng.choice((0.001, 0.005, 0.03, 0.1)),
    )


def _habits(rng: Random, mean_turn_s: float, *, calm: bool) -> Habits:
    if calm:
        return Habits(mean_turn_s=mean_turn_s)
    return Habits(
        provisional=rng.choice((0.0, 0.5, 1.0)),
        push_again=rng.choice((0.0, 0.3)),
        hand_back=rng.choice((0.0, 0.0, 0.1)),
        vanish=rng.choice((0.0, 0.0, 0.05)),
        cut_off=rng.choice((0.0, 0.0, 0.2)),
        empty=rng.choice((0.0, 0.0, 0.3)),
        partly_absent=rng.choice((0.0, 0.3)),
        disk_full=rng.choice((0.0, 0.0, 0.2)),
        mangled=rng.choice((0.0, 0.0, 0.1)),
        mean_turn_s=mean_turn_s,
    )


def _fault(rng: Random, length: float, kinds: tuple[str, ...] = FAULTS) -> Fault:
    kind = rng.choice(kinds)
    lasts = {"pause": rng.choice((0.5, 3.0, 9.0)), "cut": rng.choice((0.5, 3.0, 8.0))}
    lasts |= {"cut-server": rng.choice((0.5, 3.0, 8.0)), "cut-servers": rng.choice((0.5, 3.0, 8.0, 20.0))}
    lasts |= {"pause-coordinator": rng.choice((0.3, 6.0)), "pause-server": rng.choice((0.1, 1.5, 6.0))}
    return Fault(at_s=rng.uniform(0.0, length), kind=kind, lasts_s=lasts.get(kind, 0.0))
