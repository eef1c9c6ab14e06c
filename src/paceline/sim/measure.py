"""Measure the cost of the core: many simulated workers, no faults, and only the checks that are always on."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass
from time import process_time

from paceline.config.dials import ClusterSpec
from paceline.messages import JobArgs
from paceline.sim.cluster import Cluster
from paceline.sim.habits import Habits
from paceline.sim.network import Weather
from paceline.sim.scenario import Scenario
from paceline.types import Kind, ModelSpec, OptimizerSpec, PhaseSpec, TensorSpec

SIZES = (10, 100, 1_000, 10_000)
ROLES_PER_HOST = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """The figures of one run, in processor time.

    `slot_us` includes all processes and the virtual network, `coordinator_us` only the coordinator's core.
    """

    mode: str
    workers: int
    slots: int
    events: int
    seconds: float
    coordinator_s: float
    hosts: int = 1

    @property
    def events_per_s(self) -> float:
        """How many events of the simulated world one processor plays in a second."""
        return self.events / self.seconds

    @property
    def slot_us(self) -> float:
        """Microseconds that the whole simulation needs for one slot."""
        return 1e6 * self.seconds / self.slots

    @property
    def coordinator_us(self) -> float:
        """Microseconds that the coordinator's core needs for one slot."""
        return 1e6 * self.coordinator_s / self.slots

    def as_dict(self) -> dict[str, object]:
        """The figures as a mapping that JSON can hold."""
        return {
            **asdict(self),
            "events_per_s": round(self.events_per_s),
            "slot_us": round(self.slot_us, 1),
            "coordinator_us": round(self.coordinator_us, 1),
        }

    def __str__(self) -> str:
        """The figures as one line of text."""
        where = f" on {self.hosts:,} hosts" * (self.hosts > 1)
        return (
            f"{self.mode:<6} {self.workers:>6} workers{where} {self.slots:>7} slots "
            f"{self.events_per_s:>9,.0f} events/s "
            f"{self.slot_us:>7.1f} us/slot, coordinator {self.coordinator_us:>6.1f} us/slot"
        )


def measure(num_workers: int, mode: str = "bsp", *, num_slots: int = 30_000, hosts: int = 1) -> Cost:
    """Run about `num_slots` slots with `num_workers` workers and one server; `bsp` steps have one slot per worker.

    With several `hosts`, the workers are on the hosts in turn.
    """
    slots = num_workers if mode == "bsp" else 1
    steps = max(3, num_slots // slots)
    tensor = TensorSpec("weight", (64,), "float32", Kind.PARAMETER, 0)
    scenario = Scenario(
        seed=0,
        job=JobArgs(0, mode, slots, 1),
        model=ModelSpec((tensor,), OptimizerSpec("SGD", ({"lr": 0.1},))),
        cluster=ClusterSpec(workers=num_workers, heartbeat_s=5.0, heartbeat_timeout_s=60.0, reach_s=60.0),
        phases=(PhaseSpec(0, slots * steps, 1, slots, 1, True, False),),
        weather=Weather(mean_delay_s=0.0005),
        habits=Habits(provisional=0.0, partly_absent=0.0, mean_turn_s=0.1),
        tick_s=5.0,
        resend_s=60.0,
        hosts=hosts,
    )
    cluster = Cluster(scenario, None)
    cluster.start()
    world, log, coordinator = cluster.world, cluster.record.log, cluster.coordinator
    while not log and world.run():
        pass
    # Measure from the initial weights to the last commit, without the start of the processes.
    gc.collect()
    gc.freeze()
    coordinator.timer = process_time
    began, events = process_time(), world.events
    while len(log) <= steps and world.run():
        pass
    seconds = process_time() - began
    gc.unfreeze()
    done, played = cluster.log_checks.slots_done - 1, world.events - events
    return Cost(mode, num_workers, done, played, seconds, coordinator.spent_s, hosts)
