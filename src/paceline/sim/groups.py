"""Groups of members in a simulated job: the member in a worker's process, and the collective that members reduce by."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, cast

from paceline.core.server.contributions import Contribution
from paceline.messages import Message, Shutdown
from paceline.sim.roles import SimServer
from paceline.sim.symbols import Term
from paceline.types import NodeId

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster

_BREAKS = 0.003  # the chance that a reduction of a member breaks by itself
_HALF_DONE = 0.5  # the chance that a member has the whole sum although another member died meanwhile


class Collective:
    """Plays the library that reduces: a member has a sum only after all members of its group have contributed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = Random(f"collective {cluster.scenario.seed}")
        self._parts: dict[tuple[tuple[int, int], int], dict[int, Contribution]] = {}

    def offer(self, member: SimMember, mine: Contribution) -> None:
        """Begin the reduction of one member; its outcome is reported to the member later."""
        self._parts.setdefault((mine.at, mine.step), {})[mine.rank] = mine
        if self._cluster.faults.chance("break", _BREAKS):
            self._after(member, mine, broken=True)
        else:
            self._after(member, mine)

    def _after(self, member: SimMember, mine: Contribution, *, broken: bool = False) -> None:
        delay = 2 * self._rng.expovariate(1 / self._cluster.scenario.weather.mean_delay_s)
        self._cluster.world.after(delay + 0.001, member, self._look, member, mine, broken)

    def _look(self, member: SimMember, mine: Contribution, broken: bool) -> None:
        """Report the outcome if there is one; otherwise look again later. A stopped peer makes the others wait."""
        if mine.at != member.core.assignment.at:
            return  # the member has left this group
        parts = self._parts[mine.at, mine.step]
        whole = len(parts) == mine.size
        lost = [node for node in member.core.assignment.group if self._cluster.server_pool.find(node) is None]
        if broken or (lost and not (whole and self._rng.random() < _HALF_DONE)):
            member.broke(mine, f"{' and '.join(lost) or 'a connection'} was lost")
        elif whole:
            terms = [term for rank in range(mine.size) for term in cast(tuple[Term, ...], parts[rank].part)]
            member.reduced(replace(mine, part=tuple(terms)))
        else:
            self._after(member, mine)


class SimMember(SimServer):
    """One start of the member of a worker. It stops and dies with the worker's process."""

    def __init__(self, cluster: Cluster, name: str, node: NodeId, host: str) -> None:
        super().__init__(cluster, name, node, host)
        self._reducing: Contribution | None = None

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message."""
        if isinstance(message, Shutdown):  # the worker's script has ended, and the job can spare this member
            self.retire()
            return
        super().receive(sender, message, payload)
        if self.core.failed is not None and self.core.failed.kind == "lost":  # a later start has taken its place
            self.die()
            return
        self._contribute()

    def reduced(self, whole: Contribution) -> None:
        """Take the sum that the group has made."""
        self._reducing = None
        self._send(self.core.contributions.reduced(whole, self.cluster.world.now))
        self._send(self.core.proceed())
        self._contribute()

    def broke(self, mine: Contribution, reason: str) -> None:
        """Report that the group cannot reduce any more."""
        self._reducing = None
        self._send(self.core.contributions.broke(mine.at, reason))

    def _contribute(self) -> None:
        if self._reducing is not None and self._reducing.at == self.core.assignment.at:
            return
        self._reducing = self.core.contributions.take() if self.core.assignment.entered else None
        if self._reducing is not None:
            self.cluster.collective.offer(self, self._reducing)
