"""Does the log of a job hold together, and do its checkpoints agree with it?

Three sources are compared: the coordinator's commits and facts, the sampling function, and the hash chains in which
servers kept what they did. Nothing is believed because one of them says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.core.coverage import Hole, Steps, cover, place_all
from paceline.core.effects import FactRow, IncarnationFact, JobFact, PhaseFact, StopFact
from paceline.core.findings import LISTED, Claim, Report
from paceline.core.ledger import Ints, Ledger
from paceline.core.lineage import Span, lineage, start_of
from paceline.core.replay import Point, chains_at, maker
from paceline.core.sampling import num_steps, place
from paceline.core.schedule import Schedule
from paceline.errors import StateError
from paceline.messages import Position
from paceline.types import INIT_STEP, UNLIMITED, Commit, PhaseEntry, Segment

_COUNTED = 10_000  # missing steps whose slots are counted; of more, one each
_LARGEST = 1 << 40


def audit(facts: Sequence[FactRow], commits: Iterable[Commit], claims: Sequence[Claim] = ()) -> Report:
    """Check a log, all of it, and the checkpoints that `claims` describe.

    `commits` come in the order of incarnation and version. The result depends on nothing else, and no problem in the
    log is an exception.
    """
    work = _Audit(facts, Ledger(commits), claims)
    work.run()
    return work.report


class _Audit:
    def __init__(self, facts: Sequence[FactRow], ledger: Ledger, claims: Sequence[Claim]) -> None:
        self.report = Report()
        self.facts, self.ledger, self.claims = facts, ledger, claims
        self.begun: dict[int, IncarnationFact] = {}
        self.spans: tuple[Span, ...] = ()
        self.rows: Ints = np.zeros(0, dtype=np.int64)

    def run(self) -> None:
        """Each check goes on from what the ones before it have found; only a log without a lineage ends it early."""
        if not self._incarnations():
            return
        self._versions()
        self.rows = np.concatenate(
            [np.array(self.ledger.rows(s.incarnation, s.last), dtype=np.int64) for s in self.spans]
        )
        counts = self.report.counts
        counts.commits, counts.recomputed = len(self.rows), len(self.ledger) - len(self.rows)
        counts.slots = int((self.ledger.first[self.rows + 1] - self.ledger.first[self.rows]).sum())
        counts.empty_slots = int(self.ledger.empty[self.rows].sum())
        self._beginning()
        phases, schedule = self._plan(self.spans[-1].incarnation, check=True)
        self._steps(phases, schedule)
        self._fences()
        self._positions()
        self._chains()

    # ------------------------------------------------------------ incarnations and versions

    def _incarnations(self) -> bool:
        """Whether every incarnation has a beginning that leads back to nothing."""
        for row in self.facts:
            if isinstance(row.fact, IncarnationFact):
                if row.fact.number in self.begun:
                    number = row.fact.number
                    self.report.add("lineage", f"incarnation {number} begins twice", incarnation=number)
                self.begun[row.fact.number] = row.fact
        self.report.counts.incarnations = len(self.begun) + 1
        for number in sorted({*self.begun, *np.unique(self.ledger.incarnation).tolist()}):
            try:
                lineage(self.begun.values(), of=number)
            except StateError as error:
                self.report.add("lineage", str(error), incarnation=number)
        if self.report.ok:
            self.spans = lineage(self.begun.values())
        return self.report.ok

    def _versions(self) -> None:
        """Versions of each incarnation are contiguous, as far as anybody relies on them."""
        needed: dict[int, int] = {}
        sources = [
            (f"incarnation {n} begins from", f.position) for n, f in self.begun.items() if f.position is not None
        ]
        sources += [(f"checkpoint {claim.folder} is", claim.position) for claim in self.claims]
        for what, position in sources:
            at = maker(self.begun, (position.incarnation, position.version))
            needed[at[0]] = max(needed.get(at[0], -1), at[1])
            if not self.ledger.has(*at):
                self.report.add(
                    "version-missing",
                    f"{what} version {at[1]} of incarnation {at[0]}, which is not in the log",
                    incarnation=at[0],
                    version=at[1],
                )
        for number in sorted({*needed, *np.unique(self.ledger.incarnation).tolist()}):
            rows = self.ledger.rows(number)
            found = self.ledger.version[rows.start : rows.stop]
            start = start_of(self.begun.get(number))
            edges = np.concatenate(([start], found, [max(needed.get(number, -1), int(found.max(initial=start))) + 1]))
            for i in np.flatnonzero(np.diff(edges) > 1):
                first, last = int(edges[i]) + 1, int(edges[i + 1]) - 1
                self.report.counts.lost_commits += last - first + 1
                which = f"version {first}" if first == last else f"versions {first} to {last}"
                detail = f"{which} of incarnation {number} {'is' if first == last else 'are'} not in the log"
                self.report.add("version-missing", detail, incarnation=number, version=first)
            for i in np.flatnonzero(np.diff(edges[:-1]) < 1):
                version = int(edges[i + 1])
                detail = f"version {version} of incarnation {number} is not where it began from, or is there twice"
                self.report.add("version-twice", detail, incarnation=number, version=version)

    def _beginning(self) -> None:
        """The first version is the initial weights, and nothing else is."""
        steps, versions = self.ledger.step[self.rows], self.ledger.version[self.rows]
        for i in np.flatnonzero((steps == INIT_STEP) != (versions == 0)):
            version, step = int(versions[i]), int(steps[i])
            detail = f"version {version} is step {step}: version 0, and no other, is the initial weights"
            self.report.add("beginning", detail, version=version, step=step)
        for row in self.rows[steps == INIT_STEP]:
            if self.ledger.first[row + 1] - self.ledger.first[row] != 1:
                self._slots(row, "the initial weights are one attempt of one worker")

    # ------------------------------------------------------------ segments

    def _plan(self, incarnation: int, *, check: bool = False) -> tuple[list[PhaseEntry], Schedule]:
        """The phases and segments of an incarnation: what it began with, and what it added."""
        fact = self.begun.get(incarnation)
        position = fact.position if fact is not None else None
        phases = list(position.phases) if position is not None else []
        segments = list(position.segments) if position is not None else []
        for row in self.facts:
            if row.incarnation == incarnation and isinstance(row.fact, PhaseFact):
                phases.append(PhaseEntry(row.fact.spec, row.fact.segment, row.fact.segment.end_step))
                segments.append(row.fact.segment)
            elif row.incarnation == incarnation and isinstance(row.fact, StopFact) and row.fact.closing is not None:
                segments.append(row.fact.closing)
        if check:
            self._phases(phases, segments)
        sound = [entry for entry in phases if _is_sound(entry.segment)]
        ends = [entry.segment.step for entry in sound[1:]] + [entry.segment.end_step for entry in sound[-1:]]
        entries = [
            PhaseEntry(e.spec, e.segment, min(end, e.segment.end_step)) for e, end in zip(sound, ends, strict=True)
        ]
        # Without those that close a phase early: steps beyond may have been committed before, where there is a window.
        return entries, Schedule(s for s in segments if _is_sound(s) and s.step < s.end_step)

    def _phases(self, phases: list[PhaseEntry], segments: list[Segment]) -> None:
        """Each phase is what its call of `batches` asked for, from where the one before it ended."""
        step = epoch = 0
        firsts = {entry.segment for entry in phases}
        closing = {s.phase: s for s in segments if s.step == s.end_step and s not in firsts}
        for number, entry in enumerate(phases):
            spec, segment = entry.spec, entry.segment
            if not _is_sound(segment):
                self.report.add("phase", f"the segment of phase {number} makes no sense: {segment}", phase=number)
                continue
            asked = (number, spec.data_len, spec.batch_size, spec.shuffle, spec.drop_last, spec.epochs, 0)
            span = segment.end_epoch - segment.epoch
            got = (segment.phase, segment.data_len, segment.batch_size, segment.shuffle, segment.drop_last, span)
            if (*got, segment.offset) != asked or segment.end_step != segment.step + num_steps(segment):
                detail = f"phase {number} was to be {spec}, but its segment is {segment}"
                self.report.add("phase", detail, phase=number, step=segment.step)
            if number and (segment.step, segment.epoch) != (step, epoch):
                detail = f"phase {number} begins at step {segment.step} in epoch {segment.epoch}"
                self.report.add("phase", f"{detail}, not at step {step} in epoch {epoch}", phase=number, step=step)
            last = closing.get(segment.phase, segment)
            step, epoch = last.end_step, last.end_epoch
        before = Schedule()
        for segment in filter(_is_sound, segments):
            later = bool(before.segments) and segment.step >= before.segments[-1].step and before.covers(segment.step)
            if later and segment not in firsts:
                at = place(before.segments[-1], segment.step)
                if (at.epoch, at.offset) != (segment.epoch, segment.offset):
                    detail = f"the segment from step {segment.step} on begins at sample {segment.offset} of epoch "
                    detail += f"{segment.epoch}, not at {at.offset} of {at.epoch}"
                    self.report.add("phase", detail, phase=segment.phase, step=segment.step)
            before.append(segment)

    # ------------------------------------------------------------ steps

    def _steps(self, phases: list[PhaseEntry], schedule: Schedule) -> None:
        rows = self.rows[self.ledger.step[self.rows] != INIT_STEP]
        ends = self.ledger.step[rows]
        first = schedule.segments[0].step if schedule.segments else 0
        known = (ends >= first) & (ends < schedule.end_step)
        for row in rows[~known]:
            step, version = int(self.ledger.step[row]), int(self.ledger.version[row])
            detail = f"version {version} is step {step}, which no segment plans"
            self.report.add("step-unknown", detail, version=version, step=step)
        rows = rows[known]
        steps = place_all(schedule, self.ledger.step[rows])
        self._twice(rows, steps)
        self._made_of(rows, steps)
        self._order(rows, steps)
        bound = self._bound(phases, steps)
        self._missing(schedule, steps, bound)
        covered = cover(phases, steps, bound, self._seed())
        counts = self.report.counts
        counts.samples, counts.epochs, self.report.begun = int(steps.samples.sum()), covered.epochs, covered.begun
        for hole in covered.holes:
            self._hole(hole)

    def _seed(self) -> int:
        jobs = [row.fact.job for row in self.facts if isinstance(row.fact, JobFact)]
        if not jobs and len(self.rows):
            self.report.add("job", "the log does not say with which seed the job was started")
        jobs += [fact.position.job for fact in self.begun.values() if fact.position is not None]
        if len({job.seed for job in jobs}) > 1:
            self.report.add("job", f"the seed is not the same everywhere: {sorted({job.seed for job in jobs})}")
        return jobs[0].seed if jobs else 0

    def _twice(self, rows: Ints, steps: Steps) -> None:
        order = np.argsort(steps.step, kind="stable")
        for i in np.flatnonzero(np.diff(steps.step[order]) == 0):
            a, b = (int(self.ledger.version[rows[order[k]]]) for k in (i, i + 1))
            step = int(steps.step[order[i]])
            self.report.counts.duplicate_slots += int(steps.slots[order[i]])
            self.report.add("step-twice", f"step {step} is version {a} and version {b}", step=step, version=b)

    def _made_of(self, rows: Ints, steps: Steps) -> None:
        """Every slot of a step has one attempt, on a state that is new enough, and all of its samples."""
        ledger, counts = self.ledger, self.report.counts
        got = ledger.first[rows + 1] - ledger.first[rows]
        counts.lost_slots += int(np.maximum(steps.slots - got, 0).sum())
        counts.duplicate_slots += int(np.maximum(got - steps.slots, 0).sum())
        for i in np.flatnonzero(got != steps.slots):
            detail = f"version {ledger.version[rows[i]]} names {got[i]} attempts for step {steps.step[i]}, which has "
            self._slots(rows[i], detail + f"{steps.slots[i]} slots")
        wanted = dict(zip(rows.tolist(), steps.slots.tolist(), strict=True))
        for row, variants in ledger.variants.items():
            for blocks, fences in variants:
                if row in wanted and len(fences) != wanted[row]:
                    detail = f"version {ledger.version[row]} names {len(fences)} attempts for blocks {blocks} of step "
                    self._slots(row, detail + f"{ledger.step[row]}, which has {wanted[row]} slots")
        stale = ledger.staleness[rows]
        for i in np.flatnonzero((steps.window != UNLIMITED) & (stale > steps.window)):
            version, step = int(ledger.version[rows[i]]), int(steps.step[i])
            detail = f"version {version} (step {step}) was computed on a state {stale[i]} steps old; the window is "
            self.report.add("stale", f"{detail}{steps.window[i]}", version=version, step=step)
        samples, empty = ledger.samples[rows], ledger.empty[rows]
        wrong = (np.abs(samples - steps.samples) > 1e-6 * steps.samples) & (empty == 0)
        wrong |= (samples < 0) | (samples > steps.samples * (1 + 1e-6)) | (empty < 0) | (empty > steps.slots)
        for i in np.flatnonzero(wrong):
            version, step = int(ledger.version[rows[i]]), int(steps.step[i])
            detail = f"version {version} (step {step}) counts {samples[i]:g} samples and {empty[i]} empty slots; "
            self.report.add("samples", f"{detail}the step has {steps.samples[i]} samples", version=version, step=step)

    def _slots(self, row: int, detail: str) -> None:
        version, step = int(self.ledger.version[row]), int(self.ledger.step[row])
        self.report.add("slots", detail, version=version, step=step)

    def _order(self, rows: Ints, steps: Steps) -> None:
        """A step is committed only when every step that its gradient must contain is: lock-step is in step order."""
        order = np.argsort(steps.step, kind="stable")
        latest = np.maximum.accumulate(order)  # of the steps up to each, the one that was committed last
        upto = np.searchsorted(steps.step[order], _needs(steps)) - 1
        for i in np.flatnonzero((upto >= 0) & (latest[upto] > np.arange(len(rows)))):
            version, step = int(self.ledger.version[rows[i]]), int(steps.step[i])
            other = int(steps.step[latest[upto[i]]])
            detail = f"version {version} is step {step}, though step {other} is not committed by then"
            self.report.add("order", f"{detail} (window {steps.window[i]})", version=version, step=step)

    def _bound(self, phases: list[PhaseEntry], steps: Steps) -> int:
        """Every step below this one must be in the log: the job went on as only one that has them may."""
        bounds = [int(_needs(steps).max(initial=0)), *(entry.segment.step for entry in phases)]
        ours = {(s.incarnation, s.last) for s in self.spans}
        newest = self.begun.get(self.spans[-1].incarnation)
        positions = [newest.position] if newest is not None and newest.position is not None else []
        for claim in self.claims:
            made_by, version = maker(self.begun, (claim.position.incarnation, claim.position.version))
            if any(made_by == number and (last is None or version <= last) for number, last in ours):
                positions.append(claim.position)
        bounds += [position.watermark for position in positions]
        low, _ = _contained(steps.step)
        return max(low, *bounds)

    def _missing(self, schedule: Schedule, steps: Steps, bound: int) -> None:
        have = np.unique(steps.step[steps.step < bound])
        edges = np.concatenate(([-1], have, [bound]))
        for i in np.flatnonzero(np.diff(edges) > 1):
            first, last = int(edges[i]) + 1, int(edges[i + 1]) - 1
            self.report.counts.lost_slots += max(0, last - first - _COUNTED)
            for step in range(first, min(last, first + _COUNTED) + 1):
                slots = schedule.num_slots(step) if schedule.covers(step) else 1
                self.report.counts.lost_slots += slots
                self.report.add("step-missing", f"step {step} ({slots} slots) was never committed", step=step)

    def _hole(self, hole: Hole) -> None:
        named = ", ".join(map(str, hole.samples)) + (" …" if hole.count > len(hole.samples) else "")
        what = "applied more than once" if hole.twice else "never applied"
        self.report.add(
            "sample-twice" if hole.twice else "sample-missing",
            f"epoch {hole.epoch} (phase {hole.phase}): {hole.count} samples were {what}: {named}",
            epoch=hole.epoch,
            phase=hole.phase,
            sample=hole.samples[0] if hole.samples else -1,
        )

    # ------------------------------------------------------------ attempts

    def _fences(self) -> None:
        """An attempt counts in one slot of one commit, in the whole log."""
        ledger = self.ledger
        row = np.repeat(np.arange(len(ledger)), np.diff(ledger.first))
        slot = np.arange(len(ledger.fences)) - ledger.first[row]
        fences = ledger.fences
        more = {
            (*fence, r, i)
            for r, variants in ledger.variants.items()
            for _, others in variants
            for i, fence in enumerate(others)
        }
        named = {
            (*pair, r, i)
            for r in ledger.variants
            for i, pair in enumerate(map(tuple, fences[ledger.first[r] : ledger.first[r + 1]].tolist()))
        }
        if more - named:
            extra = np.array(sorted(more - named), dtype=np.int64)
            fences = np.concatenate((fences, extra[:, :2]))
            row, slot = np.concatenate((row, extra[:, 2])), np.concatenate((slot, extra[:, 3]))
        order = np.lexsort((fences[:, 1], fences[:, 0]))
        same = (np.diff(fences[order], axis=0) == 0).all(axis=1)
        ours = np.zeros(len(ledger), dtype=np.bool_)
        ours[self.rows] = True
        for i in np.flatnonzero(same):
            a, b = order[i], order[i + 1]
            self.report.counts.duplicate_slots += int(ours[row[a]] and ours[row[b]])
            where = [f"slot {slot[k]} of step {ledger.step[row[k]]} (version {ledger.version[row[k]]})" for k in (a, b)]
            generation, counter = fences[a].tolist()
            detail = f"attempt ({generation}, {counter}) counts in {where[0]} and in {where[1]}"
            step, version = int(ledger.step[row[b]]), int(ledger.version[row[b]])
            self.report.add("fence-twice", detail, step=step, version=version, slot=int(slot[b]))

    # ------------------------------------------------------------ checkpoints

    def _positions(self) -> None:
        kept = {claim.folder: _place_of(claim.position) for claim in self.claims}
        for number, fact in self.begun.items():
            if fact.position is None:
                continue
            self._position(fact.position, f"incarnation {number}", incarnation=number)
            here = _place_of(fact.position)
            if kept.get(fact.folder, here) != here:
                detail = f"incarnation {number} did not begin with what checkpoint {fact.folder} says"
                self.report.add("position", detail, incarnation=number, folder=fact.folder)
        for claim in self.claims:
            self._position(claim.position, f"checkpoint {claim.folder}", folder=claim.folder)

    def _position(self, position: Position, name: str, /, **where: int | str) -> None:
        """What a checkpoint says of its place in the job is what the log says of that version."""
        point = (position.incarnation, position.version)
        if not self.ledger.has(*maker(self.begun, point)):
            return  # told already
        spans = lineage(self.begun.values(), *point)
        parts = [self.ledger.rows(s.incarnation, s.last) for s in spans]
        steps = np.concatenate([self.ledger.step[part.start : part.stop] for part in parts])
        low, above = _contained(steps[steps != INIT_STEP])
        if (position.watermark, position.above) != (low, above):
            detail = f"{name} begins with all steps below {position.watermark} and {list(position.above)}, but version "
            detail += f"{point[1]} of incarnation {point[0]} has those below {low} and {list(above[:LISTED])}"
            self.report.add("position", detail, **where, version=point[1])
        _, schedule = self._plan(position.incarnation)
        known = set(schedule.segments)
        unknown = [s for s in position.segments if s.step < s.end_step and s not in known]
        if unknown:
            detail = f"{name} has a segment that incarnation {position.incarnation} has not: {unknown[0]}"
            self.report.add("position", detail, **where, step=unknown[0].step)

    def _chains(self) -> None:
        """Each block came to a checkpoint by the attempts that the log names, and by no others."""
        counts = self.report.counts
        num_blocks = max((len(claim.chains) for claim in self.claims), default=0)
        points: list[Point] = [(claim.position.incarnation, claim.position.version) for claim in self.claims]
        expected = chains_at(self.ledger, self.begun, points, num_blocks)
        for claim, point in zip(self.claims, points, strict=True):
            if point not in expected:
                continue
            counts.checkpoints += 1
            wrong: dict[tuple[str, str], list[int]] = {}
            for block, chain in enumerate(expected[point]):
                got = claim.chains[block] if block < len(claim.chains) else ""
                if got != chain.hex():
                    wrong.setdefault((got or "none", chain.hex()), []).append(block)
            for (got, due), blocks in wrong.items():
                named = ", ".join(map(str, blocks[:LISTED])) + (" …" if len(blocks) > LISTED else "")
                detail = (
                    f"checkpoint {claim.folder}: block {named} did not become version {point[1]} by the attempts in "
                )
                detail += f"the log (chain {got}, not {due})"
                self.report.add("chain", detail, folder=claim.folder, block=blocks[0], version=point[1])


def _place_of(position: Position) -> tuple[object, ...]:
    """What must be the same wherever a position is told. Metrics may be nan, which is never the same."""
    return position.incarnation, position.version, position.watermark, position.above, position.segments


def _is_sound(segment: Segment) -> bool:
    """Whether the arithmetic of a segment can be done at all."""
    numbers = (segment.step, segment.epoch, segment.offset, segment.data_len, segment.end_step, segment.end_epoch)
    if min(numbers) < 0 or max(numbers) > _LARGEST or min(segment.slots, segment.batch_size) < 1:
        return False
    if segment.end_step < segment.step or segment.offset > segment.data_len or segment.window < UNLIMITED:
        return False
    usable = segment.data_len >= (segment.batch_size if segment.drop_last else 1)
    return segment.slots * segment.batch_size <= _LARGEST and (usable or segment.step == segment.end_step)


def _needs(steps: Steps) -> Ints:
    """For each step, the one below which all must be committed before it."""
    low = np.where(steps.window == UNLIMITED, 0, steps.step - steps.window)
    return np.maximum(steps.start, low)


def _contained(steps: Ints) -> tuple[int, tuple[int, ...]]:
    """The lowest step that is not among `steps`, and those above it."""
    have = np.unique(steps)
    low = int(np.argmax(np.append(have, -1) != np.arange(len(have) + 1)))
    return low, tuple(have[low:].tolist())
