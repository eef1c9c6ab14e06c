"""Plays a plan of faults on as many rounds as it takes, and proves each of them."""

from __future__ import annotations

import contextlib
import time
from collections import deque

from paceline.runtime.fault_injection import read_counts
from paceline.testing.chaos.cuts import COORDINATOR
from paceline.testing.chaos.figures import Figures, RoundFigures
from paceline.testing.chaos.network import Network
from paceline.testing.chaos.plan import CampaignSpec, Planned, make_plan
from paceline.testing.chaos.run import ChaosRun, Ended, Stuck, Ticker
from paceline.testing.chaos.strikes import Strikes
from paceline.testing.chaos.verify import References, audit, missing_commits, read_log

_MARGIN = 20  # steps before the end of the script at which no fault begins any more
_MAX_PROBLEMS = 10  # of an audit, in the list of failures


class Campaign:
    """One campaign. `run` is called once; `figures` are valid during and after it."""

    def __init__(self, spec: CampaignSpec, screen: Ticker, command: str = "") -> None:
        self.spec = spec
        self.screen = screen
        self.figures = Figures(spec, command)
        self._references = References(spec)
        self._plan = deque(make_plan(spec.faults, spec.seed))
        self._total = len(self._plan)

    def run(self) -> Figures:
        """Play the whole plan; whatever is wrong is in the figures' failures. Leaves no process behind."""
        began = time.monotonic()
        self.spec.dir.mkdir(parents=True, exist_ok=True)
        try:
            number = 0
            while number == 0 or self._plan:
                number += 1
                with contextlib.ExitStack() as stack:
                    network = stack.enter_context(Network(self.spec.nodes)) if self.spec.cuts else None
                    if network is not None:
                        stack.enter_context(network.inside(COORDINATOR))
                    self._round(f"round-{number}", network)
        except Stuck as stuck:
            self.figures.failures.append(str(stuck))
        finally:
            self.figures.seconds = time.monotonic() - began
        self.figures.judge()
        return self.figures

    def _round(self, name: str, network: Network | None) -> None:
        began = time.monotonic()
        run = ChaosRun(self.spec, name, self.screen, network)
        figures = RoundFigures(str(run.dir.path))
        self.figures.rounds.append(figures)
        try:
            self.screen.progress(f"{name}: starting")
            run.start()
            try:
                self._strike(run, figures)
            except Ended:
                self.screen.note(f"{name}: the script has come to its end")
            self.screen.progress(f"{name}: ending")
            summary = run.finish()
            figures.steps, figures.digest = summary["steps"], summary["digest"]
            figures.generations, figures.restarts = summary["generations"], summary["restarts"]
            if left := run.leftovers():
                self.figures.leftovers += len(left)
                self.figures.failures.append(f"{name} has ended, and there is still: {', '.join(left)}")
        finally:
            run.close()
            self.figures.evictions += run.watch.shown.evictions
            self.figures.fired += read_counts(run.counts)
            figures.seconds = round(time.monotonic() - began, 1)
        self._prove(run, figures)

    def _strike(self, run: ChaosRun, figures: RoundFigures) -> None:
        strikes = Strikes(run, self.figures)
        seen = run.until_whole()
        while self._plan and not (self.spec.per_round and figures.faults >= self.spec.per_round):
            if seen.end_step is not None and seen.end_step - seen.step < _MARGIN:
                raise Ended
            planned = self._plan.popleft()
            self._show(run, planned)
            fired = self.figures.fired.total()
            try:
                hit = strikes.do(planned)
            except Ended:
                if self.figures.fired.total() == fired:
                    self._plan.appendleft(planned)
                raise
            figures.faults += 1
            if not hit:
                self._plan.appendleft(planned)
            if strikes.settled:
                seen = run.until(lambda seen: True, "a status")
        strikes.settle()
        kinds = self.spec.messages.kinds
        run.until(lambda seen: all(read_counts(run.counts)[kind] for kind in kinds), "faulty messages of every kind")

    def _show(self, run: ChaosRun, planned: Planned) -> None:
        done = self._total - len(self._plan)
        version = run.watch.last.version if run.watch.last is not None else -1
        self.screen.progress(
            f"{run.dir.path.name}: fault {done}/{self._total}: {planned.fault} · version {version} · "
            f"{len(self.figures.failures)} failures"
        )

    def _prove(self, run: ChaosRun, figures: RoundFigures) -> None:
        """Look at what the round has left."""
        name = run.dir.path.name
        self.screen.progress(f"{name}: audit")
        commits, origins, rewinds = read_log(run.dir)
        figures.versions = max((version for _, version in commits), default=-1)
        figures.shown_versions = sum(map(len, run.watch.shown.versions.values()))
        figures.incarnations = 1 + len(origins)
        self.figures.rewinds += rewinds
        missing = missing_commits(run.watch.shown.versions, commits, origins)
        self.figures.lost_commits += len(missing)
        if missing:
            self.figures.failures.append(f"{name}: shown, but not in the log: {missing[:_MAX_PROBLEMS]}")
        self._audit(run, figures)
        if self.spec.lock_step:
            self.screen.progress(f"{name}: {figures.steps} steps again, without faults")
            figures.reference = self._references.digest(figures.steps)
            if figures.digest != figures.reference:
                self.figures.failures.append(f"{name}: the digest is {figures.digest}, not {figures.reference}")

    def _audit(self, run: ChaosRun, figures: RoundFigures) -> None:
        name = run.dir.path.name
        try:
            figures.audit = report = audit(run.dir, run.env)
        except Stuck as stuck:
            self.figures.failures.append(f"{name}: {stuck}")
            return
        for count in ("lost_slots", "duplicate_slots", "lost_commits"):
            setattr(self.figures, count, getattr(self.figures, count) + report[count])
        if not report["ok"]:
            self.figures.failures += [f"{name}: audit: {text}" for text in report["problems"][:_MAX_PROBLEMS]]
