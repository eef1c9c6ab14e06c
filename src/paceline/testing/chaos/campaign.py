"""Play a plan of faults in rounds, and check each round after its end."""

from __future__ import annotations

import time
from collections import deque

from paceline.runtime.fault_injection import read_counts
from paceline.testing.chaos.figures import Figures, RoundFigures
from paceline.testing.chaos.injector import Injector
from paceline.testing.chaos.plan import CampaignSpec, Planned, make_plan
from paceline.testing.chaos.run import ChaosRun, Ended, Stuck, Ticker
from paceline.testing.chaos.verify import References, audit, missing_commits, read_log

_MARGIN = 20  # no fault begins within this many steps of the end of the script
_MAX_PROBLEMS = 10  # at most this many problems of an audit are listed as failures


class Campaign:
    """One campaign. Call `run` once; `figures` can be read while it runs and afterwards."""

    def __init__(self, spec: CampaignSpec, screen: Ticker, command: str = "") -> None:
        self.spec = spec
        self.screen = screen
        self.figures = Figures(spec, command)
        self._references = References(spec)
        self._plan = deque(make_plan(spec.faults, spec.seed))
        self._total = len(self._plan)

    def run(self) -> Figures:
        """Play the whole plan, and return figures that list every failure. All processes of the campaign are ended."""
        began = time.monotonic()
        self.spec.dir.mkdir(parents=True, exist_ok=True)
        try:
            number = 0
            while number == 0 or self._plan:
                number += 1
                run = ChaosRun(self.spec, f"round-{number}", self.screen)
                with run.connected():
                    self._round(run)
        except Stuck as stuck:
            self.figures.fail(str(stuck))
        finally:
            self.figures.seconds = time.monotonic() - began
        self.figures.judge()
        return self.figures

    def _round(self, run: ChaosRun) -> None:
        began = time.monotonic()
        name = run.dir.path.name
        figures = self.figures.begin_round(str(run.dir.path))
        try:
            self.screen.progress(f"{name}: starting")
            run.start()
            try:
                self._inject(run, figures)
            except Ended:
                self.screen.note(f"{name}: the script came to its end")
            self.screen.progress(f"{name}: ending")
            summary = run.finish()
            figures.steps, figures.digest = summary["steps"], summary["digest"]
            figures.generations, figures.restarts = summary["generations"], summary["restarts"]
            if left := run.leftovers():
                self.figures.left(left, f"after the end of {name}")
        finally:
            run.close()
            self.figures.count(evictions=run.watch.shown.evictions)
            self.figures.add_messages(read_counts(run.counts))
            figures.seconds = round(time.monotonic() - began, 1)
        self._check(run, figures)

    def _inject(self, run: ChaosRun, figures: RoundFigures) -> None:
        injector = Injector(run, self.figures)
        seen = run.until_whole()
        while self._plan and not (self.spec.per_round and figures.faults >= self.spec.per_round):
            if seen.end_step is not None and seen.end_step - seen.step < _MARGIN:
                raise Ended
            planned = self._plan.popleft()
            self._show(run, planned)
            fired = self.figures.fired.total()
            try:
                hit = injector.do(planned)
            except Ended:
                if self.figures.fired.total() == fired:
                    self._plan.appendleft(planned)
                raise
            figures.faults += 1
            if not hit:
                self._plan.appendleft(planned)
            if injector.settled:
                seen = run.until(lambda seen: True, "a status")
        injector.settle()
        kinds = self.spec.messages.kinds
        run.until(lambda seen: all(read_counts(run.counts)[kind] for kind in kinds), "faulty messages of every kind")

    def _show(self, run: ChaosRun, planned: Planned) -> None:
        done = self._total - len(self._plan)
        version = run.watch.last.version if run.watch.last is not None else -1
        self.screen.progress(
            f"{run.dir.path.name}: fault {done}/{self._total}: {planned.fault} · version {version} · "
            f"{len(self.figures.failures)} failures"
        )

    def _check(self, run: ChaosRun, figures: RoundFigures) -> None:
        """Check the log, the audit and the digest of a round that has ended."""
        name = run.dir.path.name
        self.screen.progress(f"{name}: audit")
        commits, origins, rewinds = read_log(run.dir)
        figures.versions = max((version for _, version in commits), default=-1)
        figures.shown_versions = sum(map(len, run.watch.shown.versions.values()))
        figures.incarnations = 1 + len(origins)
        self.figures.count(rewinds=rewinds)
        missing = missing_commits(run.watch.shown.versions, commits, origins)
        self.figures.count(lost_commits=len(missing))
        if missing:
            self.figures.fail(f"{name}: a status showed commits that are not in the log: {missing[:_MAX_PROBLEMS]}")
        self._audit(run, figures)
        if self.spec.lock_step:
            self.screen.progress(f"{name}: running its {figures.steps} steps without faults, to compare the digests")
            figures.reference = self._references.digest(figures.steps)
            if figures.digest != figures.reference:
                self.figures.fail(f"{name}: the digest is {figures.digest}, not {figures.reference}")

    def _audit(self, run: ChaosRun, figures: RoundFigures) -> None:
        name = run.dir.path.name
        try:
            figures.audit = report = audit(run.dir, run.env)
        except Stuck as stuck:
            self.figures.fail(f"{name}: {stuck}")
            return
        self.figures.count(**{name: report[name] for name in ("lost_slots", "duplicate_slots", "lost_commits")})
        if not report["ok"]:
            for text in report["problems"][:_MAX_PROBLEMS]:
                self.figures.fail(f"{name}: audit: {text}")
