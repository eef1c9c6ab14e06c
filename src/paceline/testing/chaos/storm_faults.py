"""A storm: one kill a second, whether the run has recovered from the last one or not."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import psutil

from paceline.testing.chaos.plan import Planned
from paceline.testing.chaos.target import Target, send
from paceline.testing.chaos.watch import Seen

STORM = "storm"
"""The name under which the times without a commit are measured."""

_EVERY_S = 1.0
_LOOK_S = 0.02
_SLOW_S = 2.0  # seconds: the figures list each time without a commit that was longer, with the kills in it
_ROLE, _FORK_SERVER = "paceline.runtime.role_process", "paceline.runtime.fork_server"


class CommitTimes:
    """When each new commit of a run was first seen. After a rewind, steps that are computed again are commits too."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._last: tuple[int, int] | None = None

    def see(self, seen: Seen) -> None:
        """Take one status."""
        now = (seen.incarnation, seen.version)
        if self._last is None or now[0] != self._last[0] or now[1] > self._last[1]:
            is_commit = self._last is None or now[0] == self._last[0]
            self._last = now
            if is_commit:
                self.at.append(seen.at)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The times without a commit: when each began and ended."""
        return list(zip(self.at, self.at[1:], strict=False))

    def pauses(self, kills: Sequence[float]) -> list[float]:
        """For each kill: the longest time without a commit that has a part between this kill and the next one."""
        gaps = self.gaps
        ends = [*kills[1:], float("inf")]
        found = [[b - a for a, b in gaps if b > kill and a < end] for kill, end in zip(kills, ends, strict=True)]
        return [max(longest) for longest in found if longest]


class StormFaults:
    """Kills processes of one run, one a second, and measures the times without a commit."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = target.run
        self._commits = CommitTimes()
        self._kills: list[float] = []
        self._names: list[str] = []

    @property
    def settled(self) -> bool:
        """Whether no storm is under way."""
        return not self._kills

    def kill(self, planned: Planned) -> None:
        """Send SIGKILL to a process of the fault's role a second after the last kill, as soon as there is one.

        Raises:
            Stuck: the run failed, or no process of the role is there in time.
            Ended: the script came to its end.
        """
        due = self._kills[-1] + _EVERY_S if self._kills else time.monotonic()
        give_up = due + self._run.spec.deadline_s
        while time.monotonic() < due or not self._commits.at or not (found := self._processes(planned.fault.role)):
            self._look()
            if time.monotonic() > give_up:
                self._run.until(lambda seen: False, f"a {planned.fault.role} to kill")
        try:
            name, victim = found[int(planned.draw * len(found))]
            self._kills.append(send(victim, signal.SIGKILL))
            self._names.append(name)
        except psutil.NoSuchProcess:
            return self.kill(planned)
        self._target.figures.fire(planned.fault)
        return None

    def settle(self) -> None:
        """Wait until the run has recovered from the storm, and add the times without a commit to the figures.

        Raises:
            Stuck: the run does not recover.
        """
        if self.settled:
            return
        last = self._kills[-1]
        while not self._commits.at or self._commits.at[-1] <= last:
            self._look()
            if time.monotonic() > last + self._run.spec.deadline_s:
                self._run.until(lambda seen: False, "a commit after the storm")
        self._run.until_whole()
        for pause_s in self._commits.pauses(self._kills):
            self._target.figures.paused(STORM, pause_s)
        for began, ended in self._commits.gaps:
            if ended - began > _SLOW_S:
                kills = zip(self._kills, self._names, strict=True)
                killed = ", ".join(f"{name} at {at - began:.1f} s" for at, name in kills if began - 1 < at < ended)
                self._target.figures.add_slow(f"no commit for {ended - began:.1f} s: {killed}")
        self._kills = []

    def _look(self) -> None:
        began = time.monotonic()
        seen = self._run.look()
        if seen is not None:
            self._commits.see(seen)
        time.sleep(max(0.0, began + _LOOK_S - time.monotonic()))

    def _processes(self, role: str) -> list[tuple[str, psutil.Process]]:
        """The names and processes of a role, or of the fork server, among the launcher's children, sorted by name."""
        launcher, *others = self._run.family()
        found: list[tuple[str, psutil.Process]] = []
        for process in others:
            try:
                words, parent = process.cmdline(), process.ppid()
            except psutil.Error:
                continue
            if parent != launcher.pid:
                continue
            if role == "fork-server" and _FORK_SERVER in words:
                found.append((role, process))
            elif _ROLE in words and (name := words[words.index(_ROLE) + 2]).partition("-")[0] == role:
                found.append((name, process))
        return sorted(found, key=lambda pair: pair[0])
