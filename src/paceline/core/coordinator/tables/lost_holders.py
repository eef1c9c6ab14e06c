"""A slot that loses several holders in a row fails the job: its samples probably end the process. Rule 4.

Workers that are lost together with their whole host count once for each host: the host was lost, not the worker. So
the loss of two hosts does not look like a slot that ends processes (rule 14).
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.schedule import Schedule
from paceline.errors import SlotPoisonedError
from paceline.types import NodeId, SlotId, name_of


class Poisoned(NamedTuple):
    """A slot that has lost too many `holders` in a row."""

    slot: SlotId
    holders: tuple[NodeId, ...]

    def error(self, schedule: Schedule, seed: int) -> SlotPoisonedError:
        """The error that fails the job: it names the samples of the slot, in a job with this schedule and seed."""
        step, slot = self.slot
        return SlotPoisonedError(step, slot, tuple(map(name_of, self.holders)), schedule.known_samples(self.slot, seed))


class LostHolders:
    """For each slot, the workers that were lost in a row while they held its lease. Only `LeaseBook` changes it."""

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self._holders: dict[SlotId, list[NodeId]] = {}
        self._hosts: dict[SlotId, set[str]] = {}

    def add(self, slot: SlotId, worker: NodeId, host: str = "") -> Poisoned | None:
        """Count the loss of `worker`, which held `slot`; returns the slot if it has lost `max_losses` in a row.

        With `host`, the whole host of the worker is lost: it counts once.
        """
        hosts = self._hosts.setdefault(slot, set())
        if host and host in hosts:
            return None
        if host:
            hosts.add(host)
        holders = self._holders.setdefault(slot, [])
        holders.append(worker)
        return None if len(holders) < self._max_losses else Poisoned(slot, tuple(holders))

    def forget(self, slot: SlotId) -> None:
        """Count the losses of `slot` from zero again: a holder has sealed it, or its step is committed."""
        if self._hosts:  # `add` writes it first: without an entry in it there is no holder, either
            self._holders.pop(slot, None)
            self._hosts.pop(slot, None)

    def clear(self) -> None:
        """Count the losses of every slot from zero again."""
        self._holders.clear()
        self._hosts.clear()
