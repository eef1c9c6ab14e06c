"""What a campaign counted and measured, and whether it passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.testing.chaos.cuts import KINDS
from paceline.testing.chaos.plan import CampaignSpec, Fault, Kind

_HEAL_S = 10.0  # seconds: a run must have recovered this long after the end of a cut
_PAUSE_S = 1.0  # seconds: the longest time without a commit that is allowed while blocks move
_STORM_P95_S, _STORM_MAX_S = 3.0, 8.0  # seconds without a commit that are allowed in a storm, by kill
_GROWN_MB = 50.0  # how much strangers may add to the resident memory of all processes of a run together


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile: the smallest of `values` such that at least a share `q` of them is not above it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """The number of values, their p50, p95 and maximum."""
    return {
        "n": len(values),
        "p50": round(quantile(values, 0.5), 3),
        "p95": round(quantile(values, 0.95), 3),
        "max": round(max(values), 3),
    }


@dataclass(slots=True)
class RoundFigures:
    """The figures of one round: one run, from its start to the comparison of its digest."""

    dir: str
    faults: int = 0
    steps: int = 0
    versions: int = 0
    shown_versions: int = 0
    incarnations: int = 1
    generations: int = 1
    digest: str | None = None
    reference: str | None = None
    audit: dict[str, Any] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True)
class Figures:
    """The figures of a campaign. `failures` lists, as text, every promise that was broken."""

    spec: CampaignSpec
    command: str
    fired: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    restored_s: dict[str, list[float]] = field(default_factory=dict)
    pause_s: dict[str, list[float]] = field(default_factory=dict)
    gone_s: list[float] = field(default_factory=list)
    grown_mb: list[float] = field(default_factory=list)
    rounds: list[RoundFigures] = field(default_factory=list)
    lost_slots: int = 0
    duplicate_slots: int = 0
    lost_commits: int = 0
    rewinds: int = 0
    resumes: int = 0
    evictions: int = 0
    needless_evictions: int = 0
    leftovers: int = 0
    checkpoints_checked: int = 0
    checkpoints_unloadable: int = 0
    missed_saves: int = 0
    slow: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def digest_equal(self) -> bool | None:
        """Whether every round ended with the same weights as its run without faults; None if none was compared."""
        compared = [r.digest == r.reference for r in self.rounds if r.reference is not None]
        return all(compared) if compared else None

    def fire(self, fault: Fault | str) -> None:
        """Count a fault that was injected."""
        self.fired[str(fault)] += 1

    def fail(self, text: str) -> None:
        """Add a failure of the campaign."""
        self.failures.append(text)

    def count(self, **more: int) -> None:
        """Add to the counters, by their names."""
        for name, number in more.items():
            setattr(self, name, getattr(self, name) + number)

    def gone(self, seconds: float) -> None:
        """Note how many seconds it took until nothing was left of a killed run."""
        self.gone_s.append(seconds)

    def grown(self, nbytes: int) -> None:
        """Note how much resident memory all processes of a run took more while strangers were connected."""
        self.grown_mb.append(nbytes / 1e6)

    def left(self, names: Sequence[str], when: str) -> None:
        """Add a failure: processes, ports or shared memory are left at a time when none may be left."""
        self.count(leftovers=len(names))
        self.fail(f"{when}, these are left: {', '.join(names)}")

    def add_slow(self, text: str) -> None:
        """Note a recovery that took long."""
        self.slow.append(text)

    def add_messages(self, fired: Counter[str]) -> None:
        """Add the faults of messages that the workers of a round counted."""
        self.fired += fired

    def begin_round(self, path: str) -> RoundFigures:
        """Begin another round; returns its figures."""
        self.rounds.append(RoundFigures(path))
        return self.rounds[-1]

    def measured(self, name: str, recovery_s: float | None, restored_s: float) -> None:
        """Note that the run recovered from a fault: seconds to the next commit, and to a complete run."""
        if recovery_s is not None:
            self.recovery_s.setdefault(name, []).append(recovery_s)
        self.restored_s.setdefault(name, []).append(restored_s)

    def paused(self, name: str, pause_s: float) -> None:
        """Note the longest time without a commit during a fault."""
        self.pause_s.setdefault(name, []).append(pause_s)

    def judge(self) -> None:
        """Add to `failures` every figure that breaks a promise or a limit. Called once, at the end."""
        fail = self.fail
        for fault, planned in sorted(self.spec.faults.items()):
            if (fired := self.fired[str(fault)]) < planned:
                fail(f"{fault}: {fired} of {planned} planned faults were injected")
        for kind in self.spec.messages.kinds:
            if not self.fired[kind]:
                fail(f"{kind}: this fault of messages never happened")
        for name, what in (
            ("lost_slots", "slots were lost"),
            ("duplicate_slots", "slots were applied twice"),
            ("lost_commits", "commits are missing in the log"),
            ("needless_evictions", "workers were evicted because the coordinator paused"),
            ("checkpoints_unloadable", "times there was no complete checkpoint after a kill"),
        ):
            if number := getattr(self, name):
                fail(f"{number} {what}")
        if self.spec.lock_step and self.digest_equal is not True:
            fail("no round was compared with a run without faults" if self.digest_equal is None else "digests differ")
        took = [Fault(kind, "server") for kind in (Kind.KILL, Kind.STOP, Kind.SAVING, Kind.STORM)]
        servers = sum(self.fired[str(fault)] for fault in (*took, *(Fault(Kind.CUT, how) for how in KINDS)))
        if self.rewinds > servers:
            fail(f"{self.rewinds} rewinds, but only {servers} faults hit a server")
        elif self.rewinds and self.spec.replicas and not self.spec.storms:  # a storm may kill all holders of a block
            fail(f"{self.rewinds} rewinds, but every block had {self.spec.replicas} copies")
        self._judge_restarts()
        self._judge_times()

    def _judge_restarts(self) -> None:
        """With all-reduce, the loss of a worker restarts no other one."""
        kills = self.fired[str(Fault(Kind.KILL, "worker"))]
        others = (Kind.ALL, Kind.LAUNCHER, Kind.STORM)
        if not self.spec.collective or self.rewinds or any(fault.kind in others for fault in self.spec.faults):
            return
        restarts = sum(made.restarts.get("worker", 0) for made in self.rounds)
        if restarts > kills:
            self.fail(f"workers were restarted {restarts} times, but only {kills} were killed")

    def _judge_times(self) -> None:
        fail = self.fail
        if (grown_mb := max(self.grown_mb, default=0.0)) > _GROWN_MB:
            fail(f"strangers made the run take {grown_mb:.0f} MB more, above {_GROWN_MB:.0f} MB")
        for name in (str(Fault(Kind.CUT, kind)) for kind in KINDS):
            if (healed_s := max(self.restored_s.get(name, [0.0]))) > _HEAL_S:
                fail(f"{name}: the run recovered {healed_s:.1f} s after the end of the cut, above {_HEAL_S} s")
        for name in (str(Fault(kind, "server")) for kind in (Kind.ADD, Kind.DRAIN)):
            if (pause_s := max(self.pause_s.get(name, [0.0]))) > _PAUSE_S:
                fail(f"{name}: no commit for {pause_s:.2f} s, above {_PAUSE_S} s")
        if self.spec.storms:
            samples = self.pause_s.get(str(Kind.STORM), [])
            if not samples:
                fail("storm: no time without a commit was measured")
            elif (p95 := quantile(samples, 0.95)) > _STORM_P95_S or max(samples) > _STORM_MAX_S:
                limits = f"p95 {_STORM_P95_S} s or largest {_STORM_MAX_S} s"
                fail(f"storm: no commit for p95 {p95:.2f} s, largest {max(samples):.2f} s, above {limits}")
        for name, limit_s in self.spec.limits.items():
            samples = self.recovery_s.get(name, [])
            if not samples:
                fail(f"the recovery of {name} was not measured, and its limit is {limit_s} s")
            elif (p95 := quantile(samples, 0.95)) > limit_s:
                fail(f"{name}: kill to next commit has a p95 of {p95:.2f} s, above {limit_s} s")

    def as_dict(self) -> dict[str, Any]:
        """The figures as a mapping that JSON can hold."""
        spec = self.spec
        return {
            "ok": not self.failures,
            "failures": self.failures,
            "command": self.command,
            "seed": spec.seed,
            "mode": spec.mode,
            "workers": spec.workers,
            "servers": spec.servers,
            "replicas": spec.replicas,
            "lease_s": spec.lease_s,
            "lane": spec.lane,
            "planned": {str(fault): number for fault, number in sorted(spec.faults.items())},
            "fired": dict(sorted(self.fired.items())),
            "lost_slots": self.lost_slots,
            "duplicate_slots": self.duplicate_slots,
            "lost_commits": self.lost_commits,
            "rewinds": self.rewinds,
            "resumes": self.resumes,
            "digest_equal": self.digest_equal,
            "recovery_s": _spreads(self.recovery_s),
            "restored_s": _spreads(self.restored_s),
            "pause_s": _spreads(self.pause_s),
            "gone_s": spread(self.gone_s) if self.gone_s else None,
            "grown_mb": spread(self.grown_mb) if self.grown_mb else None,
            "evictions": self.evictions,
            "needless_evictions": self.needless_evictions,
            "leftovers": self.leftovers,
            "checkpoints_checked": self.checkpoints_checked,
            "checkpoints_unloadable": self.checkpoints_unloadable,
            "missed_saves": self.missed_saves,
            "slow": self.slow,
            "restarts": dict(sum((Counter(r.restarts) for r in self.rounds), Counter())),
            "steps": sum(r.steps for r in self.rounds),
            "seconds": round(self.seconds, 1),
            "rounds": [_round(r) for r in self.rounds],
        }


def _spreads(samples: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {name: spread(values) for name, values in sorted(samples.items())}


def _round(figures: RoundFigures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in RoundFigures.__dataclass_fields__}


_RECOVERY = "seconds to the next commit: p50/p95/max (n)"
_COLUMNS = ("campaign", "fired", "rounds", "steps", "lost", "twice", "commits lost", "rewinds", "digest", _RECOVERY)


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of campaigns as lines of text: a header, then one line each. `results` come from `Figures.as_dict`."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for name, r in results.items():
        recovery = ", ".join(
            f"{who} {s['p50']:.2f}/{s['p95']:.2f}/{s['max']:.2f} ({s['n']})" for who, s in r["recovery_s"].items()
        )
        digest = {True: "equal", False: "DIFFERS", None: "-"}[r["digest_equal"]]
        numbers = (
            sum(r["fired"].values()),
            len(r["rounds"]),
            r["steps"],
            r["lost_slots"],
            r["duplicate_slots"],
            r["lost_commits"],
            r["rewinds"],
        )
        rows.append((name if r["ok"] else f"{name} FAILED", *(f"{n:,}" for n in numbers), digest, recovery))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS) - 1)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
