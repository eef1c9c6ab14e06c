"""Decides which tasks carry the agents of a run on Spark: how many there are, which end, and when to give up.

Each task is a Spark job of its own with one partition, and has a number. Spark may start the task again, or a second
time: each such start brings a new host (rule 13). Pure: the carrier passes events and the time in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.hosts.node_shares import Wanted

JOIN_S = 120.0
"""Seconds within which the hosts that a run needs must join before its first role."""

HOLD_S = 30.0
"""Seconds for which the roles wait for further executors after the hosts that the run needs have joined."""

DUPLICATE = 1000
"""The number that a task returns instead of an agent's, if its executor carries an agent already."""

TRIES = 3
"""Agents that may fail in a row before a run gives up on which no host has joined."""

_STEADY_S = 5.0  # executors register one after the other
_BOTH_S = 45.0  # longer than a host that does not answer takes part
_ASK_AGAIN_S = 10.0
_SURPLUS_S = 5.0  # a number of roles that lasts less long gives no executor back
_DUPLICATE_S = 5.0
_LONGEST_PAUSE_S = 30.0
_HOST = re.compile(r"executor-(\d+)-(\d+)")


def host_name(number: int, start: int) -> str:
    """The name of the host that a start of task `number` brings. No two starts have the same number in Spark."""
    return f"executor-{number}-{start}"


@dataclass(frozen=True, slots=True)
class Offer:
    """What the application has now.

    Its `executors` are registered, and a task on one of them has `cores` cores and leaves room for no second task.
    Tasks run on `active` of them. With `elastic`, Spark brings executors for tasks that wait; `most` is how many there
    can ever be, None for no limit.
    """

    executors: int
    cores: int
    active: int = 0
    elastic: bool = False
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit the task with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the task with this number, with all its starts."""

    number: int


@dataclass(frozen=True, slots=True)
class KillStart:
    """Kill one start of a task; a later start goes on."""

    start: int


@dataclass(frozen=True, slots=True)
class Release:
    """Empty this host: its executor is not needed any more, or a later start has taken its place."""

    host: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Show the user a note."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run cannot begin."""

    reason: str


Output = Submit | Cancel | KillStart | Release | Tell | GiveUp


@dataclass(slots=True)
class _Task:
    """One task; `hosts` has the host of each start that takes part, and `since` when it joined.

    `released` starts are being emptied. A task that `is_leaving` was last asked to leave at `asked_at`.
    """

    hosts: dict[int, str] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    is_leaving: bool = False
    asked_at: float = 0.0


class ExecutorTasks:
    """The tasks of one run, whose supervisor listens at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._tasks: dict[int, _Task] = {}
        self._next = 0
        self._hoped: int | None = None
        self._seen = (0, 0)
        self._steady_since = 0.0
        self._began_at: float | None = None
        self._enough_at: float | None = None
        self._is_settled = False
        self._failures = 0
        self._reason = ""
        self._due = 0.0
        self._surplus_since: float | None = None
        # Hosts that the user has emptied since the number of executors was `_executors`: they get no other agent.
        self._left = self._executors = 0

    # ------------------------------------------------------------ events

    def ended(self, number: int, code: int | None, reason: str, now: float) -> list[Output]:
        """Take note that a task has ended: with the exit `code` of its agent, or by an error of Spark."""
        if (task := self._tasks.pop(number, None)) is None:
            return []  # it was cancelled
        if code == 0:
            self._left += not task.is_leaving
            return []
        if code == DUPLICATE:
            self._due = now + _DUPLICATE_S
            return []
        self._failures += 1
        self._reason = reason
        pause_s = min(_LONGEST_PAUSE_S, 2.0 ** min(self._failures - 1, 10))
        self._due = now + pause_s
        return [Tell(f"an agent on Spark ended: {reason}. Another is started in {pause_s:.0f} s", warning=True)]

    def coming(self, joined: int, now: float) -> int:
        """How many hosts are on their way for which the first roles should wait, if `joined` have joined."""
        if self._is_settled:
            return 0
        if self._hoped is None or self._enough_at is None:
            return 1
        return 0 if now - self._enough_at > HOLD_S else max(0, self._hoped - joined)

    # ------------------------------------------------------------ decisions

    def decide(self, joined: Mapping[str, int], wanted: Wanted, offer: Offer, now: float) -> list[Output]:
        """What to do now. `joined` has the number of roles on each host that takes part."""
        if self._began_at is None:
            self._began_at = now
        outputs = self._follow(joined, now)
        usable = max(wanted.hosts, math.ceil(wanted.roles / offer.cores))
        if offer.executors != self._executors:
            self._left, self._executors = 0, offer.executors
        target = _reachable(usable, wanted, offer) - self._left
        self._is_settled |= wanted.has_begun
        if not self._is_settled:
            self._hope(len(joined), usable, wanted, offer, now)
            outputs += self._begin(joined, wanted, offer, now)
        staying = sum(not task.is_leaving for task in self._tasks.values())
        if staying < target and now >= self._due:
            outputs += [self._submit() for _ in range(target - staying)]
        if staying <= usable or wanted.unlimited:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since >= _SURPLUS_S:
            outputs += self._give_back(joined, now)
        return outputs + self._ask_again(now)

    def _submit(self) -> Submit:
        number, self._next = self._next, self._next + 1
        self._tasks[number] = _Task()
        return Submit(number)

    def _follow(self, joined: Mapping[str, int], now: float) -> list[Output]:
        """Take note of the hosts that have joined or gone; end earlier starts of a task, and tasks that are empty."""
        outputs: list[Output] = []
        for task in self._tasks.values():
            task.hosts.clear()
        for host in joined:
            found = _HOST.fullmatch(host)
            if found is not None and int(found[1]) in self._tasks:
                task, start = self._tasks[int(found[1])], int(found[2])
                task.hosts[start] = host
                if start not in task.since:
                    task.since[start] = now
                    self._failures = 0
        for number, task in list(self._tasks.items()):
            if task.is_leaving and not task.hosts:
                del self._tasks[number]
                outputs.append(Cancel(number))
                continue
            # An earlier start is lost by itself if its executor is. It is emptied only if it lives on.
            last = max(task.hosts, default=0)
            for start in task.hosts.keys() - task.released - {last}:
                if now - task.since[last] >= _BOTH_S:
                    task.released.add(start)
                    outputs.append(Release(task.hosts[start]))
            for start in task.released - task.hosts.keys():
                task.released.discard(start)
                outputs.append(KillStart(start))
        return outputs

    def _ask_again(self, now: float) -> list[Output]:
        """Ask again for hosts that were given back and are still there: the coordinator may have refused."""
        outputs: list[Output] = []
        for task in self._tasks.values():
            if task.is_leaving and now - task.asked_at >= _ASK_AGAIN_S:
                task.asked_at = now
                outputs += [Release(host) for host in task.hosts.values()]
        return outputs

    def _give_back(self, joined: Mapping[str, int], now: float) -> list[Output]:
        """Give one executor back: one without a host first, then the one with the fewest roles. One at a time."""
        if any(task.is_leaving for task in self._tasks.values()):
            return []
        number = min(self._tasks, key=lambda n: (sum(joined[h] for h in self._tasks[n].hosts.values()), -n))
        task = self._tasks[number]
        if not task.hosts:
            del self._tasks[number]
            return [Cancel(number)]
        task.is_leaving, task.asked_at = True, now
        return [Release(host) for host in task.hosts.values()]

    # ------------------------------------------------------------ before the first role

    def _hope(self, joined: int, usable: int, wanted: Wanted, offer: Offer, now: float) -> None:
        """Decide for how many hosts the first roles should wait: for those that the run can use and may still come."""
        if (offer.executors, joined) != self._seen:
            self._seen, self._steady_since = (offer.executors, joined), now
        hoped = max(usable, joined + 1) if wanted.unlimited else usable
        if offer.most is not None:
            hoped = min(hoped, offer.most)
        is_steady = now - self._steady_since >= _STEADY_S and joined >= offer.executors
        self._hoped = joined if is_steady and not offer.elastic else hoped

    def _begin(self, joined: Mapping[str, int], wanted: Wanted, offer: Offer, now: float) -> list[Output]:
        """Decide whether the first roles can start, and if not, whether it makes sense to wait any longer."""
        assert self._began_at is not None
        if len(joined) >= wanted.hosts:
            if self._enough_at is None:
                self._enough_at = now
            if self.coming(len(joined), now):
                return []
            self._is_settled = True
            if wanted.roles > len(joined) * offer.cores and not wanted.unlimited:
                what = f"{wanted.roles} roles share {len(joined)} executors with {offer.cores} cores each"
                return [Tell(f"{what}: it is slower than with a core for each role", warning=True)]
            return []
        if offer.most is not None and offer.most < wanted.hosts:
            return [GiveUp(_too_few(wanted.hosts, offer.most, "can have"))]
        if self._failures >= TRIES and not joined:
            return [GiveUp(f"no agent can be started on Spark: {self._reason}")]
        if now - self._began_at > JOIN_S:
            return [GiveUp(self._nobody(len(joined), wanted, offer))]
        return []

    def _nobody(self, joined: int, wanted: Wanted, offer: Offer) -> str:
        """Why the hosts that a run needs have not joined in time."""
        if self._reason:
            return f"no agent can be started on Spark: {self._reason}"
        if not offer.executors:
            return (
                f"no executor of the Spark application has registered within {JOIN_S:.0f} s: the cluster has no room "
                "for one. Lower spark.executor.memory or spark.executor.cores, or give another --master"
            )
        if offer.executors < wanted.hosts:
            return _too_few(wanted.hosts, offer.executors, f"has after {JOIN_S:.0f} s")
        if not offer.active:
            return (
                f"the {offer.executors} executors of the Spark application have had no room for an agent for "
                f"{JOIN_S:.0f} s: other jobs use their cores"
            )
        return (
            f"{joined} of {wanted.hosts} agents have reached {self._address} within {JOIN_S:.0f} s: give --listen "
            "ADDR:PORT, an address of this machine that the executors can reach"
        )


def _too_few(hosts: int, executors: int, verb: str) -> str:
    return (
        f"the run needs {hosts} hosts (--min-hosts, --replicas), and the Spark application {verb} {executors} "
        f"executor{'s' * (executors != 1)}: add executors, or lower these options"
    )


def _reachable(usable: int, wanted: Wanted, offer: Offer) -> int:
    """How many tasks there should be: those that the run can use, of those that can get an executor."""
    if wanted.unlimited:
        usable = max(usable, offer.executors + offer.elastic)
    if not offer.elastic:
        usable = min(usable, offer.executors)
    return usable if offer.most is None else min(usable, offer.most)
