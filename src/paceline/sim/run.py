"""Play schedules (simulated jobs with faults) and collect their figures."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from time import perf_counter

from paceline.core.audit.audit import audit
from paceline.core.audit.findings import CheckpointRecord
from paceline.core.effects import BadRecordFact, PhaseFact, SegmentFact
from paceline.sim.cluster import Cluster
from paceline.sim.scenario import Scenario
from paceline.sim.world import Trace, Violation

_LOOK_EVERY = 8  # events: after so many, check again whether the job is complete
_SETTLE_S = 1.0  # simulated seconds between the end of the last worker and the check that nothing is left to do


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one schedule. Two runs have equal digests only if all events are equal; "" without `hashed`."""

    seed: int
    digest: str
    events: int
    virtual_s: float
    commits: int
    slots: int
    lost_workers: int
    wasted_slots: int
    fired: dict[str, int] = field(default_factory=dict)
    failovers: int = 0
    copies: int = 0
    rewinds: int = 0
    moves: int = 0


def simulate(scenario: Scenario, *, hashed: bool = False) -> Outcome:
    """Play one schedule to its end; with `hashed`, the outcome has a digest of every event.

    Raises:
        Violation: a rule was broken, or the job did not end. The message names the seed and the last events.
    """
    trace = Trace(hashed=hashed)
    cluster = Cluster(scenario, trace)
    collecting = gc.isenabled()
    gc.disable()  # a schedule makes little garbage, and looking for it took a sixth of the time
    try:
        play(cluster)
    except Violation as error:
        raise Violation(
            f"{error.what}\n  {scenario}", seed=scenario.seed, event=cluster.world.events, lines=trace.lines()
        ) from None
    except Exception as error:
        raise Violation(
            f"{type(error).__name__}: {error}\n  {scenario}",
            seed=scenario.seed,
            event=cluster.world.events,
            lines=trace.lines(),
        ) from error
    finally:
        if collecting:
            gc.enable()
    core = cluster.coordinator.core
    return Outcome(
        scenario.seed,
        trace.digest,
        cluster.world.events,
        cluster.world.now,
        len(cluster.record.log),
        cluster.log_checks.slots_done,
        core.totals.lost_workers,
        core.totals.wasted_slots,
        cluster.faults.fired,
        core.tables.placed.failovers,
        cluster.log_checks.copies,
        core.tables.incarnation.rewinds,
        cluster.log_checks.moves,
    )


_SUMMED = ("events", "commits", "slots", "lost_workers", "wasted_slots", "failovers", "copies", "rewinds", "moves")


class Tally:
    """The figures of many schedules."""

    def __init__(self) -> None:
        self.seeds = 0
        self.violations: dict[int, str] = {}
        self.totals = dict.fromkeys(_SUMMED, 0)
        self.fired: dict[str, int] = {}
        self._began = perf_counter()

    def add(self, outcome: Outcome) -> None:
        """Add a schedule without a violation."""
        self.seeds += 1
        for name in self.totals:
            self.totals[name] += getattr(outcome, name)
        for kind, times in outcome.fired.items():
            self.fired[kind] = self.fired.get(kind, 0) + times

    def fail(self, violation: Violation) -> None:
        """Add a schedule that broke a rule."""
        self.seeds += 1
        self.violations[violation.seed] = violation.what

    def as_dict(self) -> dict[str, object]:
        """The figures as a mapping that JSON can hold."""
        seconds = perf_counter() - self._began
        return {
            "seeds": self.seeds,
            "violations": {str(seed): what for seed, what in self.violations.items()},
            "seconds": round(seconds, 3),
            "events_per_s": round(self.totals["events"] / seconds),
            **self.totals,
            "fired": dict(sorted(self.fired.items())),
        }

    def __str__(self) -> str:
        """The figures in a few lines."""
        figures = self.as_dict()
        faults = ", ".join(f"{times} {kind}" for kind, times in sorted(self.fired.items()))
        bad = f"VIOLATED by seeds {sorted(self.violations)}" if self.violations else "no rule was broken"
        return (
            f"{self.seeds} schedules in {figures['seconds']} s: {bad}\n"
            f"{self.totals['events']:,} events ({figures['events_per_s']:,}/s), {self.totals['commits']:,} commits, "
            f"{self.totals['slots']:,} slots, {self.totals['lost_workers']:,} workers lost, "
            f"{self.totals['failovers']:,} failovers, {self.totals['copies']:,} copies made, "
            f"{self.totals['rewinds']:,} rewinds, {self.totals['moves']:,} moves between reducers\nfaults: {faults}"
        )


def play(cluster: Cluster) -> None:
    """Play the job of `cluster` to its end, and check it."""
    cluster.start()
    _work(cluster)
    while not _settle(cluster):
        _work(cluster)
    _check_end(cluster)


def _work(cluster: Cluster) -> None:
    """Play until the job is complete."""
    world, scenario = cluster.world, cluster.scenario
    limit = scenario.heal_at_s + scenario.bound_s
    while world.run(_LOOK_EVERY):
        if cluster.coordinator.core.failure is not None:
            raise Violation(f"the job failed: {cluster.coordinator.core.failure.reason}")
        if world.now > limit:
            raise Violation(f"no end {scenario.bound_s} s after the faults ended: {_stuck(cluster)}")
        if not cluster.faults.on and all(w.done or not w.alive for w in cluster.workers):
            if cluster.is_complete():
                break
            if cluster.coordinator.alive and not cluster.coordinator.core.machines.rewind.is_rewinding:
                cluster.spawn_another()  # blocks were lost after all scripts had ended


def _settle(cluster: Cluster) -> bool:
    """Play until all messages have arrived, all leases have ended and lost copies are made again.

    Returns False if blocks are lost meanwhile, so that the job must go on.
    """
    world, scenario = cluster.world, cluster.scenario
    limit = world.now + scenario.cluster.heartbeat_timeout_s + 3 * _SETTLE_S
    until = limit if scenario.lingers else world.now + _SETTLE_S
    while world.now < limit and world.run(_LOOK_EVERY):
        if world.now < until:
            continue
        if not cluster.is_complete():
            return False
        if _is_at_rest(cluster):
            break
        until += _SETTLE_S
    return cluster.is_complete()


def _is_at_rest(cluster: Cluster) -> bool:
    core = cluster.coordinator.core
    if (
        len(core.tables.leases.live)
        or len(core.tables.gate)
        or not core.settled
        or not (cluster.scenario.cluster.collective or cluster.server_pool.is_redundant())
    ):
        return False
    try:
        cluster.server_pool.check_end(len(cluster.record.log) - 1)
    except Violation:
        return False
    return True


def _stuck(cluster: Cluster) -> str:
    states = [
        f"{w.node} {w.core.state} {w.core.task} asked={w._asked}" for w in cluster.workers if w.alive and not w.done
    ]
    core = cluster.coordinator.core
    return f"{'; '.join(states)}; version {core.version}, watermark {core.watermark.low}"


def _check_end(cluster: Cluster) -> None:
    """Check that nothing is missing and nothing is left over."""
    record, core = cluster.record, cluster.coordinator.core
    last = len(record.log) - 1
    cluster.server_pool.check_end(last)
    _check_progress(cluster, last)
    if len(core.tables.leases.live) or len(core.tables.gate):
        raise Violation(f"{len(core.tables.leases.live)} leases and {len(core.tables.gate)} steps are left")
    if not cluster.saves:
        raise Violation("no worker saved the model")
    counted, true = (core.totals.samples, core.totals.skipped_slots), record.counted()
    if abs(counted[0] - true[0]) > 1e-6 or counted[1] != true[1]:
        raise Violation(f"the servers applied (samples, empty slots) {true}, but the summary says {counted}")
    _check_audit(cluster)
    for validator in cluster.scenario.validators:
        _check_validations(cluster, validator.name, validator.every, validator.data_len)


def _check_audit(cluster: Cluster) -> None:
    """Audit the log of a job whose dials have changed, or that leaves out bad records."""
    disk = cluster.disk
    if not any(isinstance(row.fact, SegmentFact | BadRecordFact) or _is_scheduled(row.fact) for row in disk.facts):
        return
    commits = [commit for _, commits in sorted(disk.commits.items()) for commit in commits]
    saved = [
        CheckpointRecord(folder, f.checkpoint.position, tuple(c.hex() for c in f.chains))
        for folder, f in sorted(disk.folders.items())
        if f.checkpoint is not None
    ]
    report = audit(disk.facts, commits, saved)
    if not report.ok:
        raise Violation(f"the audit finds {report.problems[:3]}")


def _is_scheduled(fact: object) -> bool:
    return isinstance(fact, PhaseFact) and bool(fact.more)


def _check_progress(cluster: Cluster, last: int) -> None:
    record, phases = cluster.record, cluster.coordinator.core.tables.phases.phases
    record.apply_closing()
    low, end = record.watermark.low, record.schedule.end_step
    if low < end or (low > end and not cluster.stopped):
        raise Violation(f"only {low} of {end} steps are committed")
    in_order = all(segment.window == 0 for segment in record.schedule.segments)
    if last != end and (in_order or not cluster.stopped):
        raise Violation(f"the job has {end} steps, but its last version is {last}")
    if len(phases) != len(cluster.scenario.phases) and not cluster.stopped:
        raise Violation(f"{len(phases)} of {len(cluster.scenario.phases)} phases were run")


def _check_validations(cluster: Cluster, name: str, every: int, data_len: int) -> None:
    record, checks = cluster.record, cluster.log_checks
    if not every or not data_len:
        return
    due = {v for v in range(1, len(record.log)) if v % every == 0}
    due |= {v for v in record.line.phase_versions.values() if v > 0}
    done = {version for _, other, version in checks.results if other == name}
    if not due - done <= set(range(checks.excused)) or (done != due and record.incarnation == 0):
        raise Violation(f"validation {name} ran on versions {sorted(done)}, not {sorted(due)}")
