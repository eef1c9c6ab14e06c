"""Ends a run that the user or the system interrupts: waits for a last checkpoint, and says where a resume begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from paceline.config.live import parse_every
from paceline.engines.actions import Outcome
from paceline.engines.coordinator_client import CoordinatorClient
from paceline.engines.last_checkpoint import PATIENCE_S, LastCheckpoint, Next
from paceline.engines.plan import RunPlan
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.role_runner import RoleRunner
from paceline.engines.screen import Screen, ScreenClosed
from paceline.engines.sigterm import Terminated
from paceline.engines.stop_requests import Stopped
from paceline.errors import ClusterLostError, UsageError
from paceline.runtime.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED
from paceline.runtime.roles import COORDINATOR

_WAIT_S = 0.1
_STOPPED = "stopped"


def interrupted_by(error: KeyboardInterrupt) -> tuple[int, str]:
    """The exit code of a run that `error` ends, and the reason in words."""
    if isinstance(error, Terminated):
        return EXIT_TERMINATED, "terminated by SIGTERM"
    return EXIT_INTERRUPTED, _STOPPED if isinstance(error, Stopped) else "interrupted"


class Interruption:
    """Handles the interruption of one run."""

    def __init__(
        self, plan: RunPlan, runner: RoleRunner, client: CoordinatorClient, hint: ResumeHint, screen: Screen
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._client = client
        self._hint = hint
        self._screen = screen

    def end(self, code: int, reason: str, drain: Callable[[], None]) -> Outcome:
        """Wait a few seconds for a last checkpoint, unless another signal comes; returns how the run ended.

        Meanwhile `drain` shows what the processes print, and raises requests to end at once.
        """
        last = LastCheckpoint(enabled=any(parse_every(self._plan.checkpoint_every)))
        # The second signal ends the run at once, and so does a cluster that ends meanwhile.
        with suppress(KeyboardInterrupt, ScreenClosed, ClusterLostError, UsageError):
            drain()
            self._save(last, reason, drain)
        known = self._client.status if self._client.heard else None
        return Outcome(code, reason, advice=self._hint.after_end(known, last.problem))

    def _save(self, last: LastCheckpoint, reason: str, drain: Callable[[], None]) -> None:
        self._client.look(0.5)
        following = last.begin(self._client.status if self._client.heard else None, time.monotonic())
        if following is not Next.OVER:
            wait = f"waits up to {PATIENCE_S:.0f} s for a checkpoint"
            again = "; another such signal ends the run at once" * (reason != _STOPPED)
            self._screen.note(f"{reason}: {wait}{again}")
        while following is not Next.OVER:
            if following is Next.ASK:
                self._client.save_now()
            drain()
            new = self._client.pump(_WAIT_S) and self._client.settled
            following = last.see(self._client.status if new else None, time.monotonic())
            if not self._runner.alive(COORDINATOR):
                following = last.lost()
