"""The faults of a campaign and their order: plain data, derived from a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from paceline.config.dials import ALLREDUCE, check_replicas, parse_mode
from paceline.errors import UsageError
from paceline.testing.chaos.cuts import KINDS

_MAX_PAUSE_S = 0.5  # longest random pause before a fault, so that faults hit all moments of a step and a checkpoint


class Kind(StrEnum):
    """The kinds of faults; each value is the name of its command line option."""

    KILL = "kill"
    STOP = "stop"
    TERM = "term"
    JOIN = "join"
    SET = "set"
    SAVING = "kill-saving"
    ALL = "kill-all"
    LAUNCHER = "kill-launcher"
    CUT = "cut"
    ADD = "add"
    DRAIN = "drain"
    STORM = "storm"
    STRANGERS = "strangers"


ROLES: Mapping[Kind, tuple[str, ...]] = {
    Kind.KILL: ("worker", "server", "coordinator"),
    Kind.STOP: ("worker", "server", "coordinator"),
    Kind.TERM: ("worker",),
    Kind.JOIN: ("worker",),
    Kind.SET: ("mode",),
    Kind.SAVING: ("server", "coordinator"),
    Kind.ALL: ("run",),
    Kind.LAUNCHER: ("launcher",),
    Kind.CUT: KINDS,
    Kind.ADD: ("server",),
    Kind.DRAIN: ("server",),
    Kind.STORM: ("worker", "server", "coordinator", "fork-server"),
    Kind.STRANGERS: ("run",),
}
"""The roles that each kind of fault can hit; for cuts, the forms of a cut."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One kind of fault on one kind of victim."""

    kind: Kind
    role: str

    def __str__(self) -> str:
        return self.kind if self.kind in (Kind.ALL, Kind.LAUNCHER, Kind.STRANGERS) else f"{self.kind} {self.role}"

    @property
    def measured_as(self) -> str:
        """The name under which the recovery is measured: for kills, which `--limit` names by role, only the role."""
        return self.role if self.kind in (Kind.KILL, Kind.SAVING) else str(self)


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of the plan. `draw` and `span`, between 0 and 1, select the victim and a length of time."""

    fault: Fault
    pause_s: float
    draw: float
    span: float


@dataclass(frozen=True, slots=True)
class Messages:
    """The probabilities that a message to or from a worker is dropped, duplicated or delayed."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.05

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "delay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UsageError(
                    f"--{name} is a probability: it must be 0 or more and below 1, not {getattr(self, name)}"
                )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of message faults that must happen at least once."""
        return tuple(name for name in ("drop", "duplicate", "delay") if getattr(self, name) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSpec:
    """The options of a campaign. `script` runs with `arguments` on so many `workers` and `servers`.

    Each time a run is resumed, it gets the next of `shapes` (workers, servers) in turn.

    The run without faults also gets `plain_arguments`, and runs in `plain_shape` if one is given; neither may change
    the result.

    With `replicas`, the loss of a server is a failover: a campaign with a rewind fails, unless it is a storm.

    With the `lane` tcp, processes of one host share no memory. A round ends after `per_round` faults (0: after all
    faults). `limits` has the largest allowed p95 of a recovery in seconds, by the name under which it is measured.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    plain_arguments: tuple[str, ...] = ()
    plain_shape: tuple[int, int] | None = None
    faults: Mapping[Fault, int]
    messages: Messages = Messages()
    seed: int = 0
    workers: int = 3
    servers: int = 2
    replicas: int = 0
    mode: str = "bsp"
    slots: int | None = None
    lease_s: float = 2.0
    lane: str = "auto"
    checkpoint_every: str = "20"
    shapes: tuple[tuple[int, int], ...] = ()
    per_round: int = 0
    limits: Mapping[str, float]
    deadline_s: float = 60.0
    dir: Path

    def __post_init__(self) -> None:
        if not self.script.is_file():
            raise UsageError(f"{self.script} is not a file")
        parse_mode(self.mode)
        for name in ("workers",) if self.collective else ("workers", "servers"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.collective:
            if self.servers or self.replicas or any(fault.role == "server" for fault in self.faults):
                raise UsageError("--mode allreduce has no servers: give -s 0, and no --replicas and faults of servers")
        else:
            self._check_servers()
        if self.lane not in ("auto", "tcp"):
            raise UsageError(f"--lane must be auto or tcp, not {self.lane!r}")
        if self.lease_s <= 0.5:
            raise UsageError(f"--lease must be above the heartbeat interval of 0.5 s, not {self.lease_s}")
        if self.plain_shape is not None and self.slots is None:
            raise UsageError("--plain-shape needs --slots: without it, a step has as many slots as there are workers")
        if self.per_round < 0:
            raise UsageError(f"--per-round must be 0 or more, not {self.per_round}")
        if self.storms and any(fault.kind != Kind.STORM for fault in self.faults):
            raise UsageError("--storm does not wait for recoveries, and other faults do: use one of them")
        if self.cuts and any(fault.kind in (Kind.ALL, Kind.LAUNCHER) for fault in self.faults):
            raise UsageError(
                "--cut runs on agents, which outlive a launcher: leave out --kill-all and --kill-launcher"
                " (`paceline dev hosts --adoptions` kills launchers of such runs)"
            )
        if not sum(self.faults.values()) and not self.messages.kinds:
            raise UsageError("nothing to inject: give at least one fault, such as --kill worker=3")

    def _check_servers(self) -> None:
        check_replicas(self.replicas, self.servers)
        if self._fewest_servers <= self.replicas:
            raise UsageError(
                f"--drain would leave {self._fewest_servers} of {self.servers} servers, and --replicas {self.replicas} "
                f"needs {self.replicas + 1}: raise --servers, or --add as many"
            )

    @property
    def collective(self) -> bool:
        """Whether the workers hold the blocks. Their slots are ordered, so that digests are those of `bsp`."""
        return self.mode == ALLREDUCE

    @property
    def method(self) -> list[object]:
        """The options of ``paceline run`` for the method."""
        if self.collective:
            return ["--mode", self.mode, "--insecure-collective", "--ordered"]
        return ["--replicas", self.replicas, "--mode", self.mode]

    @property
    def _fewest_servers(self) -> int:
        """The lowest number of servers during the campaign. Adds and drains alternate, and a drain may come first."""
        adds, drains = (self.faults.get(Fault(kind, "server"), 0) for kind in (Kind.ADD, Kind.DRAIN))
        return self.servers - max(drains - adds, min(drains, 1) if self.per_round else 0)

    @property
    def cuts(self) -> bool:
        """Whether the campaign cuts the network, so that every role needs a host of its own."""
        return any(fault.kind == Kind.CUT for fault in self.faults)

    @property
    def storms(self) -> bool:
        """Whether the campaign kills without waiting for a recovery. Its run has the default limits of a user's run."""
        return any(fault.kind == Kind.STORM for fault in self.faults)

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts of a campaign with cuts: one for each worker and each server."""
        roles = self.workers + self.servers + self.faults.get(Fault(Kind.ADD, "server"), 0)
        return [f"host-{number}" for number in range(1, roles + 1)] if self.cuts else []

    @property
    def lock_step(self) -> bool:
        """Whether the result is the same in every run, so that digests can be compared."""
        return parse_mode(self.mode).window == 0 and not any(fault.kind == Kind.SET for fault in self.faults)


def parse_faults(kind: Kind, texts: Iterable[str]) -> Counter[Fault]:
    """Read texts such as ``worker=6``: the number of faults by role. Numbers for the same role are added.

    Raises:
        UsageError: this kind of fault cannot hit that role, or the number is missing.
    """
    found: Counter[Fault] = Counter()
    for text in texts:
        role, equals, number = text.partition("=")
        if not equals or role not in ROLES[kind] or not number.isdecimal():
            known = " or ".join(f"{name}=N" for name in ROLES[kind])
            raise UsageError(f"--{kind} takes {known}, not {text!r}")
        found[Fault(kind, role)] += int(number)
    return found


def parse_limits(texts: Iterable[str]) -> dict[str, float]:
    """Read texts such as ``worker=1.0``: limits in seconds, by the name of what is measured.

    Raises:
        UsageError: a text is not a known name and a number.
    """
    known = {Fault(kind, role).measured_as for kind, roles in ROLES.items() for role in roles}
    limits = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            raise UsageError(f"--limit takes NAME=SECONDS such as server=2, not {text!r}") from None
        if name not in known:
            raise UsageError(f"--limit: nothing is measured as {name!r}; known are {', '.join(sorted(known))}")
    return limits


def parse_shape(text: str) -> tuple[int, int]:
    """Read ``3x1``: three workers and one server.

    Raises:
        UsageError: the text does not have this form.
    """
    workers, _, servers = text.partition("x")
    if not (workers.isdecimal() and servers.isdecimal() and int(workers) and int(servers)):
        raise UsageError(f"a shape is WORKERSxSERVERS such as 3x1, not {text!r}")
    return int(workers), int(servers)


def make_plan(faults: Mapping[Fault, int], seed: int) -> list[Planned]:
    """All faults in a random order. The same seed gives the same plan."""
    rng = random.Random(f"chaos {seed}")
    order = [fault for fault in sorted(faults) for _ in range(faults[fault])]
    rng.shuffle(order)
    _alternate(order)
    return [Planned(fault, rng.uniform(0.0, _MAX_PAUSE_S), rng.random(), rng.random()) for fault in order]


def _alternate(order: list[Fault]) -> None:
    """Reorder adds and drains so that they alternate: the number of servers then stays near its first value."""
    places = [i for i, fault in enumerate(order) if fault.kind in (Kind.ADD, Kind.DRAIN)]
    come = [order[i] for i in places if order[i].kind == Kind.ADD]
    go = [order[i] for i in places if order[i].kind == Kind.DRAIN]
    turns = [fault for pair in zip(come, go, strict=False) for fault in pair]
    turns += come[len(go) :] + go[len(come) :]
    for i, fault in zip(places, turns, strict=True):
        order[i] = fault
