"""Ends a run that the user or the system interrupts: waits for a last checkpoint, and says where a resume begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from paceline.engines.actions import Outcome
from paceline.engines.coordinator_client import CoordinatorClient
from paceline.engines.last_checkpoint import PATIENCE_S, LastCheckpoint, Next
from paceline.engines.plan import RunPlan, parse_every
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.role_runner import RoleRunner
from paceline.engines.screen import Screen, ScreenClosed
from paceline.runtime.roles import COORDINATOR

_WAIT_S = 0.1


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

        Meanwhile `drain` shows what the processes print.
        """
        last = LastCheckpoint(enabled=any(parse_every(self._plan.checkpoint_every)))
        with suppress(KeyboardInterrupt, ScreenClosed):  # the second signal ends the run at once
            self._save(last, reason, drain)
        known = self._client.status if self._client.heard else None
        return Outcome(code, reason, advice=self._hint.after_end(known, last.problem))

    def _save(self, last: LastCheckpoint, reason: str, drain: Callable[[], None]) -> None:
        self._client.look(0.5)
        following = last.begin(self._client.status if self._client.heard else None, time.monotonic())
        if following is not Next.OVER:
            wait = f"waits up to {PATIENCE_S:.0f} s for a checkpoint"
            self._screen.note(f"{reason}: {wait}; another such signal ends the run at once")
        while following is not Next.OVER:
            if following is Next.ASK:
                self._client.save_now()
            drain()
            new = self._client.pump(_WAIT_S) and self._client.settled
            following = last.see(self._client.status if new else None, time.monotonic())
            if not self._runner.alive(COORDINATOR):
                following = last.lost()
