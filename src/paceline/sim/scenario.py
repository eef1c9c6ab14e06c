"""Derive a scenario from a seed: the dials, data, network and faults of one simulated job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import msgspec

from paceline.config.dials import ALLREDUCE, ClusterSpec
from paceline.messages import JobArgs, ValidatorSpec
from paceline.sim.fault_kinds import GROUP_FAULTS, HOST_FAULTS, SERVER_FAULTS, Fault, draw_fault
from paceline.sim.habits import Habits, make_habits
from paceline.sim.job_parts import make_model, make_phases, make_weather, with_steps
from paceline.sim.live import MIXED, LiveSet, make_schedule, make_set
from paceline.sim.network import Weather
from paceline.types import DialChange, ModelSpec, PhaseSpec

BOTH = "both"
"""In place of a mode: a job that moves between the reducers while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan:
    """A planned stop: the first worker with a slot of `step`, or of a later step, stops the job."""

    step: int
    at_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One complete schedule: equal scenarios give equal runs."""

    seed: int
    job: JobArgs
    model: ModelSpec
    cluster: ClusterSpec
    phases: tuple[PhaseSpec, ...]
    validators: tuple[ValidatorSpec, ...] = ()
    evaluate: int = -1  # number of the validator that scripts call by `evaluate` after each phase
    weather: Weather = field(default_factory=Weather)
    habits: Habits = field(default_factory=Habits)
    speeds: tuple[float, ...] = (1.0,)
    faults: tuple[Fault, ...] = ()
    heal_at_s: float = 0.0
    stop: StopPlan | None = None
    live: tuple[LiveSet, ...] = ()
    bad: tuple[int, ...] = ()  # samples whose content is damaged, in the data of every phase
    careful: bool = False  # servers are lost one at a time, each after every block has all its copies again
    single_thread: bool = False  # a worker handles no message while it computes, but sends heartbeats
    lingers: bool = False  # the simulator plays on for a while after the end, even if nothing is left to do
    hurries: bool = False  # turns and links are fast after the faults have ended
    hosts: int = 1  # workers and servers are on hosts in turn; the coordinator is on a host of its own
    unequal: bool = False  # workers of different hosts have different fingerprints
    part_nbytes: int = 1 << 30  # pushes, replies to pulls and copies travel in parts of this size
    resend_s: float = 1.0
    tick_s: float = 0.25
    generation: int = 2
    bound_s: float = 300.0

    def __str__(self) -> str:
        """The scenario as one line of text."""
        steps = "+".join(
            f"{p.data_len}/{p.batch_size}" + (f"to{p.steps}" if p.steps else f"x{p.epochs}") for p in self.phases
        )
        return (
            f"seed {self.seed}: {self.job.mode} slots={self.job.slots} det={self.model.deterministic} "
            f"w={self.cluster.workers} s={self.cluster.servers} r={self.cluster.replicas}"
            f"{' careful' * self.careful}{f' hosts={self.hosts}' * (self.hosts > 1)}{' unequal' * self.unequal} "
            f"hold={self.cluster.held} data={steps} "
            f"stop={self.stop} validators={[v.every for v in self.validators]} evaluate={self.evaluate} "
            f"{self.live} {self.weather} {[(round(f.at_s, 2), f.kind, round(f.lasts_s, 2)) for f in self.faults]}"
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """The size and the mode of a job."""

    mode: str
    workers: int
    servers: int
    replicas: int
    careful: bool
    slots: int | None
    phases: tuple[PhaseSpec, ...]

    @property
    def num_slots(self) -> int:
        """The slots of all phases."""
        return sum(
            p.steps * (self.slots or self.workers) if p.steps else -(-p.data_len // p.batch_size) * p.epochs
            for p in self.phases
        )

    def length_s(self, mean_turn_s: float, mean_delay_s: float) -> float:
        """About how many seconds most of the job takes. Faults are planned within this time, while workers run."""
        at_once = min(self.workers, self.slots or self.workers)
        return 0.5 + self.num_slots / at_once * (1.6 * mean_turn_s + 7 * mean_delay_s)


def make_scenario(
    seed: int,
    *,
    mode: str | None = None,
    workers: int | None = None,
    servers: int | None = None,
    replicas: int | None = None,
    hosts: int | None = None,
) -> Scenario:
    """Make the scenario of `seed`; the other arguments, if given, override parts of it.

    What concerns hosts, live changes and bad records has random numbers of its own.
    """
    if mode == ALLREDUCE:
        return _with_bad(Random(f"bad {seed}"), _in_group(seed, workers))
    if mode == BOTH:
        return _with_bad(Random(f"bad {seed}"), _with_moves(seed, workers, servers, replicas))
    scenario = _on_one_host(seed, mode=mode, workers=workers, servers=servers, replicas=replicas)
    scenario = _with_live(Random(f"live {seed}"), scenario) if mode is None else scenario
    scenario = _with_bad(Random(f"bad {seed}"), scenario)
    by_host = Random(f"hosts {seed}")
    drawn = by_host.randint(2, 4) if by_host.random() < 0.35 else 1
    hosts = drawn if hosts is None else hosts
    return scenario if hosts < 2 else _on_hosts(by_host, scenario, hosts, servers)


def _with_bad(rng: Random, scenario: Scenario) -> Scenario:
    """Let the data of some jobs have bad records."""
    if rng.random() >= 0.2:
        return scenario
    return replace(scenario, bad=tuple(sorted(rng.sample(range(20), rng.randint(1, 5)))))


def _in_group(seed: int, workers: int | None) -> Scenario:
    """A job whose workers hold the blocks and sum by a collective, on one host."""
    scenario = _on_one_host(seed, mode=ALLREDUCE, workers=workers, servers=1, replicas=0)
    rng = Random(f"group {seed}")
    times = rng.choice((1, 2, 4))  # most jobs are long enough to lose members, and to get new ones in between
    length_s = times * (scenario.heal_at_s - 1.0)
    others = ("kill-server", "pause-server", "scale", "cut-server", "cut-servers")
    faults = [replace(f, at_s=times * f.at_s) for f in scenario.faults if f.kind not in others]
    more = (draw_fault(rng, GROUP_FAULTS) for _ in range(rng.randint(0, 6)))
    faults += [replace(f, at_s=f.at_s * length_s) for f in more]
    return replace(
        scenario,
        phases=tuple(msgspec.structs.replace(p, epochs=times * p.epochs) for p in scenario.phases),
        cluster=replace(scenario.cluster, collective=True, servers=0, shares_memory=rng.random() < 0.5),
        faults=tuple(sorted(faults, key=lambda f: f.at_s)),
        heal_at_s=length_s + 1.0,
        bound_s=2 * times * scenario.bound_s + 60.0,
    )


def _with_moves(seed: int, workers: int | None, servers: int | None, replicas: int | None) -> Scenario:
    """A job on one host whose blocks move between servers and the workers while it runs."""
    scenario = _on_one_host(seed, mode=None, workers=workers, servers=servers, replicas=replicas)
    rng = Random(f"moves {seed}")
    times = rng.choice((2, 4, 6))
    length_s = times * (scenario.heal_at_s - 1.0)
    phases = tuple(msgspec.structs.replace(p, epochs=times * p.epochs) for p in scenario.phases)
    last = max(4, sum(p.steps or p.data_len * p.epochs // p.batch_size for p in phases))
    mode = make_schedule(rng, rng.choice(MIXED), last, MIXED)
    live = [make_set(rng, last, length_s, MIXED) for _ in range(rng.randint(0, 4))]
    if ALLREDUCE not in mode:
        live.append(LiveSet(change=DialChange(mode=ALLREDUCE), step=rng.randint(0, last // 2)))
    faults = [replace(f, at_s=times * f.at_s) for f in scenario.faults if f.kind != "flip"]
    kinds = (*GROUP_FAULTS, *SERVER_FAULTS)
    more = (draw_fault(rng, kinds) for _ in range(rng.randint(0, 6) if scenario.faults else 0))
    faults += [replace(f, at_s=f.at_s * length_s) for f in more]
    return replace(
        scenario,
        job=msgspec.structs.replace(scenario.job, mode=mode),
        phases=phases,
        live=tuple(live),
        cluster=replace(scenario.cluster, collective=True),
        faults=tuple(sorted(faults, key=lambda f: f.at_s)),
        careful=False,
        heal_at_s=length_s + 1.0,
        bound_s=12 * scenario.bound_s + 120.0,
    )


def _with_live(rng: Random, scenario: Scenario) -> Scenario:
    """Let some jobs change their dials while they run."""
    if rng.random() >= 0.35:
        return scenario
    times = rng.choice((1, 1, 6))  # some jobs are long enough to be rewound after a change
    phases = tuple(msgspec.structs.replace(p, epochs=times * p.epochs) for p in scenario.phases)
    last = max(2, sum(p.steps or p.data_len * p.epochs // p.batch_size for p in phases))
    job = scenario.job
    if rng.random() < 0.5:
        job = msgspec.structs.replace(job, mode=make_schedule(rng, job.mode, last))
    job = msgspec.structs.replace(job, slots_auto=rng.random() < 0.1)
    length_s = times * (scenario.heal_at_s - 1.0)
    faults = [replace(fault, at_s=times * fault.at_s) for fault in scenario.faults]
    cluster = scenario.cluster
    if times > 1 and faults and not scenario.careful:  # rewinds to a checkpoint from before a change
        cluster = replace(cluster, checkpoint_steps=rng.choice((2, 3, 5)))
        losses = [
            replace(faults[0], at_s=rng.random() * length_s, kind="kill-server") for _ in range(rng.randint(0, 2))
        ]
        faults = sorted([*faults, *losses], key=lambda fault: fault.at_s)
    return replace(
        scenario,
        job=job,
        phases=phases,
        live=tuple(make_set(rng, last, length_s) for _ in range(rng.randint(0, 4))),
        cluster=cluster,
        faults=tuple(faults),
        heal_at_s=length_s + 1.0,
        bound_s=6 * scenario.bound_s + 60.0,  # a phase of a number of steps has up to six times the slots
    )


_MUCH_LOSS = 0.1  # from this share of lost messages on, a host may miss what it is sent for long after a cut
_LONGEST_CUT_S = 8.0  # a server that cannot be spared is lost after 30 s in which it does not hear: by nature a rewind


def _on_hosts(rng: Random, scenario: Scenario, hosts: int, servers: int | None) -> Scenario:
    """The scenario on several hosts, with faults of hosts: most jobs have a server on each of them."""
    cluster = scenario.cluster
    if servers is None and rng.random() < 0.8:
        cluster = replace(cluster, servers=max(cluster.servers, hosts))
    times = rng.choice((1, 1, 3))  # some jobs are long enough to lose hosts, and to make copies in between
    length_s = times * (scenario.heal_at_s - 1.0)
    faults = [replace(f, at_s=times * f.at_s) for f in scenario.faults]
    faults += [
        replace(f, at_s=f.at_s * length_s) for f in (draw_fault(rng, HOST_FAULTS) for _ in range(rng.randint(1, 5)))
    ]
    if scenario.careful and scenario.weather.drop >= _MUCH_LOSS:
        faults = [replace(f, lasts_s=min(f.lasts_s, _LONGEST_CUT_S)) if f.kind == "cut-host" else f for f in faults]
    return replace(
        scenario,
        hosts=hosts,
        unequal=rng.random() < 0.2,
        cluster=cluster,
        phases=tuple(msgspec.structs.replace(p, epochs=times * p.epochs) for p in scenario.phases),
        faults=tuple(sorted(faults, key=lambda f: f.at_s)),
        heal_at_s=length_s + 1.0,
        bound_s=times * scenario.bound_s + 60.0,
    )


def _on_one_host(
    seed: int, *, mode: str | None, workers: int | None, servers: int | None, replicas: int | None
) -> Scenario:
    rng, chance = Random(f"scenario {seed}"), Random(f"copies {seed}")
    shape = _shape(rng, chance, mode=mode, workers=workers, servers=servers, replicas=replicas)
    shape = replace(shape, phases=with_steps(Random(f"steps {seed}"), shape.phases))
    calm = rng.random() < 0.15
    mean_turn_s = rng.choice((0.02, 0.08, 0.3))
    speeds = _speeds(rng, shape.workers)
    faults = _faults(rng, chance, shape, calm=calm)
    weather = Weather() if calm else make_weather(rng)
    length_s = shape.length_s(mean_turn_s, weather.mean_delay_s)
    stop = _stop(rng, shape)
    validators, evaluate = _validators(rng)
    return Scenario(
        seed=seed,
        job=JobArgs(seed, shape.mode, shape.slots, 1),
        model=make_model(rng),
        cluster=_cluster(rng, chance, shape),
        phases=shape.phases,
        validators=validators,
        evaluate=evaluate,
        weather=weather,
        habits=make_habits(rng, mean_turn_s, calm=calm),
        speeds=speeds,
        faults=tuple(replace(f, at_s=f.at_s * length_s) for f in sorted(faults, key=lambda f: f.at_s)),
        heal_at_s=length_s + 1.0,
        stop=stop,
        careful=shape.careful,
        single_thread=rng.random() < 0.6,
        part_nbytes=rng.choice((1, 1 << 30)),
        lingers=chance.random() < 0.1,
        hurries=chance.random() < 0.85,
        bound_s=_bound_s(shape, validators, mean_turn_s * max(speeds), weather.mean_delay_s),
    )


def _shape(
    rng: Random,
    chance: Random,
    *,
    mode: str | None,
    workers: int | None,
    servers: int | None,
    replicas: int | None,
) -> _Shape:
    mode_ = rng.choice(("bsp", "bsp", "bsp", "ssp:0", "ssp:1", "ssp:3", "asp"))
    workers_, servers_ = rng.randint(1, 6), rng.randint(1, 3)
    mode_, workers_, servers_ = mode or mode_, workers or workers_, servers or servers_
    replicas_ = chance.choice((0, 1, 1, 2)) if replicas is None else replicas
    if replicas_ and servers is None:
        servers_ = max(servers_, replicas_ + chance.randint(1, 2))
    replicas_ = min(replicas_, servers_ - 1)
    careful = replicas_ > 0 and chance.random() < 0.5
    slots = rng.randint(1, 6) if mode_ in ("bsp", ALLREDUCE) else None
    if rng.random() < 0.1:
        slots = rng.randint(2, 3)  # also test a window together with several slots per step
    phases = make_phases(rng, slots or 1)
    if replicas_ and chance.random() < 0.12:  # a job that is long enough to make copies and lose them again
        phases = tuple(msgspec.structs.replace(p, epochs=2 * p.epochs) for p in phases)
    return _Shape(mode_, workers_, servers_, replicas_, careful, slots, phases)


def _speeds(rng: Random, workers: int) -> tuple[float, ...]:
    """For each worker, a factor for the length of its turns. At least one worker is not slow."""
    speeds = [rng.choice((1.0, 1.0, 4.0)) * rng.uniform(0.7, 1.4) for _ in range(workers)]
    if min(speeds) > 1.4:
        speeds[0] = 1.0
    return tuple(speeds)


def _faults(rng: Random, chance: Random, shape: _Shape, *, calm: bool) -> list[Fault]:
    """Draw the faults. Their times are fractions of the job's length."""
    faults = [] if calm else [draw_fault(rng) for _ in range(rng.randint(0, 6))]
    if shape.careful:
        faults = [f for f in faults if f.kind not in ("power-cut", "damage")]
    if shape.replicas or chance.random() < 0.3:
        faults += [draw_fault(chance, SERVER_FAULTS) for _ in range(chance.randint(0, 5))]
    return faults


def _stop(rng: Random, shape: _Shape) -> StopPlan | None:
    if rng.random() >= 0.2:
        return None
    step = rng.randint(0, max(1, shape.num_slots // (shape.slots or 1)))
    return StopPlan(step=step, at_once=rng.random() < 0.5)


def _validators(rng: Random) -> tuple[tuple[ValidatorSpec, ...], int]:
    """All validators, and the number of the one that scripts call by `evaluate` (-1: none)."""
    validators = tuple(
        ValidatorSpec(i, f"v{i}", rng.choice((1, 2, 3, 5)), rng.randint(0, 20), rng.randint(3, 8))
        for i in range(rng.choice((0, 0, 1, 2)))
    )
    if rng.random() >= 0.2:
        return validators, -1
    by_hand = ValidatorSpec(len(validators), "by hand", 0, rng.randint(0, 12), 4)
    return (*validators, by_hand), by_hand.number


def _cluster(rng: Random, chance: Random, shape: _Shape) -> ClusterSpec:
    return ClusterSpec(
        workers=shape.workers,
        servers=shape.servers,
        hold=rng.choice((None, None, 1, 2, 3)),
        max_losses=1000,
        heartbeat_s=0.8,
        heartbeat_timeout_s=5.0,
        grace_s=0.3,
        rewinds=True,
        checkpoint_steps=rng.choice((0, 1, 2, 3, 5, 8)),
        checkpoint_s=rng.choice((0.0, 0.0, 1.0)),
        keep_checkpoints=rng.randint(1, 3),
        replicas=shape.replicas,
        reach_s=chance.choice((1.5, 3.0)),
    )


def _bound_s(shape: _Shape, validators: tuple[ValidatorSpec, ...], turn_s: float, delay_s: float) -> float:
    """The seconds in which the slowest worker alone can do all the work, after the others are evicted."""
    turns = shape.num_slots + sum(
        -(-v.data_len // v.batch_size) * (len(shape.phases) + (shape.num_slots // v.every if v.every else 0))
        for v in validators
    )
    return 60.0 + 1.5 * turns * (1.5 * turn_s + (12 + 12 * (shape.replicas > 0)) * delay_s)
