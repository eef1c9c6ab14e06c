"""The audit: a clean log passes, and each kind of damage is reported."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.core import segment
from tests.kit.story import Story, eventful

from paceline.core.audit import coverage
from paceline.core.audit.audit import audit
from paceline.core.audit.findings import LISTED, CheckpointRecord
from paceline.core.effects import FactRow, IncarnationFact, JobFact, PhaseFact
from paceline.core.sampling import Indices, num_steps, sample_range, sample_ranges
from paceline.types import INIT_STEP, Fence, PhaseSpec

replace = msgspec.structs.replace


@pytest.mark.parametrize("mode", ["bsp", "ssp:3", "asp"])
def test_a_clean_log_passes(mode: str) -> None:
    story = eventful(mode)
    report = story.audit()
    assert report.problems == []
    counts = report.counts
    assert (counts.incarnations, counts.checkpoints) == (4, 4)
    assert counts.epochs == (6 if mode == "bsp" else 5)
    assert counts.recomputed == 5
    assert counts.commits == len(story.commits) - 5 == story.version + 1
    assert (counts.lost_commits, counts.lost_slots, counts.duplicate_slots) == (0, 0, 0)


def test_the_report_counts_commits_slots_samples_and_epochs() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=20, batch=4, epochs=2)
    story.go(4)
    report = story.audit()
    assert report.ok
    counts = report.counts
    assert (counts.commits, counts.steps, counts.slots) == (5, 4, 2 + 2 + 1 + 2), "the initial weights are no step"
    assert (counts.samples, counts.epochs, counts.left_out) == (28, 1, 0)
    assert report.begun == ((1, 8),)


def test_the_report_counts_the_samples_that_drop_last_leaves_out() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=21, batch=4, epochs=3, drop_last=True)
    story.go(7)
    report = story.audit()
    assert report.ok
    assert (report.counts.epochs, report.counts.left_out, report.begun) == (2, 2, ((2, 8),))


def test_every_prefix_of_a_clean_log_is_clean() -> None:
    story = eventful()
    cut = next(i for i, row in enumerate(story.facts) if isinstance(row.fact, IncarnationFact))
    for n in range(1, sum(c.incarnation == 0 for c in story.commits)):
        assert audit(story.facts[:cut], story.commits[:n]).ok


def test_a_phase_may_be_stopped_early() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=20, batch=2, epochs=5)
    story.go(7)
    story.stop(9)
    story.go()
    story.save()
    report = story.audit()
    assert report.ok
    assert (report.counts.epochs, report.begun) == (1, ((1, 16),))


def test_an_immediate_stop_may_leave_commits_above_the_watermark() -> None:
    story = Story("asp", slots=1)
    story.phase(data_len=20, batch=2, epochs=5)
    for step in (0, 1, 2, 4, 6):
        story.commit(step)
    story.stop(3)
    report = story.audit()
    assert report.ok
    assert (report.counts.samples, report.begun) == (10, ((0, 6),))


def test_a_job_may_rewind_to_before_its_first_checkpoint() -> None:
    story = Story()
    story.phase()
    story.go(3)
    story.rewind(None)
    story.phase()
    story.go()
    story.save()
    assert story.audit().ok
    assert story.audit().counts.recomputed == 4


def test_a_checkpoint_may_hold_the_version_that_its_incarnation_began_from() -> None:
    story = Story()
    story.phase()
    story.go(3)
    story.rewind(story.save())
    again = story.save()
    assert (again.position.incarnation, again.position.version) == (1, 3)
    story.go(1)
    story.rewind(again)
    story.go()
    assert story.audit().problems == []
    assert story.audit().counts.checkpoints == 2
    assert story.audit().counts.recomputed == 1


def test_a_phase_may_follow_one_that_was_stopped() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=20, batch=2, epochs=5)
    story.stop(7)
    story.go()
    story.phase(data_len=20, batch=2, epochs=9)
    story.go()
    report = story.audit()
    assert report.problems == []
    assert (report.counts.epochs, report.begun) == (10, ((1, 8),))


def test_metrics_may_be_nan() -> None:
    story = eventful()
    for number, old in enumerate(story.checkpoints):
        story.checkpoints[number] = CheckpointRecord(
            old.folder, replace(old.position, metrics={"loss": float("nan")}), old.chains
        )
    parent(metrics={"loss": float("nan")})(story)
    assert story.audit().ok


def test_empty_slots_are_counted() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=20, batch=2, epochs=1)
    story.go()
    story.commits[3] = replace(story.commits[3], samples=2.0, empty=1)
    report = story.audit()
    assert report.ok
    assert report.counts.empty_slots == 1


def test_a_log_without_commits_is_clean() -> None:
    report = audit([], [])
    assert report.ok
    assert report.counts.commits == 0


# ---------------------------------------------------------------- tampering

Tamper = Callable[[Story], object]


def at(story: Story, version: int) -> int:
    """The index of the newest commit of `version`."""
    return max(i for i, c in enumerate(story.commits) if c.version == version)


def change(version: int, **fields: object) -> Tamper:
    def apply(story: Story) -> None:
        i = at(story, version)
        story.commits[i] = replace(story.commits[i], **fields)

    return apply


def drop(version: int) -> Tamper:
    return lambda story: story.commits.pop(at(story, version))


def swap(a: int, b: int) -> Tamper:
    """Swap two commits."""

    def apply(story: Story) -> None:
        i, j = at(story, a), at(story, b)
        x, y = story.commits[i], story.commits[j]
        story.commits[i] = replace(y, version=x.version, incarnation=x.incarnation)
        story.commits[j] = replace(x, version=y.version, incarnation=y.incarnation)

    return apply


def take_fence(story: Story) -> None:
    """Give a slot of version 5 the attempt of a slot of version 4."""
    i, j = at(story, 5), at(story, 4)
    mine = story.commits[i].fences
    story.commits[i] = replace(story.commits[i], fences=(story.commits[j].fences[1], *mine[1:]))


def swap_fences(story: Story) -> None:
    i = at(story, 3)
    story.commits[i] = replace(story.commits[i], fences=story.commits[i].fences[::-1])


def forget_variants(story: Story) -> None:
    story.commits[:] = [replace(c, variants=()) for c in story.commits]


def short_variant(story: Story) -> None:
    i = at(story, 3)
    story.commits[i] = replace(story.commits[i], variants=(((0, 1, 4), (Fence(9, 9),)),))


def saved(number: int, **fields: object) -> Tamper:
    def apply(story: Story) -> None:
        old = story.checkpoints[number]
        position = replace(old.position, **fields)
        story.checkpoints[number] = CheckpointRecord(old.folder, position, old.chains)

    return apply


def chain(story: Story) -> None:
    old = story.checkpoints[2]
    chains = list(old.chains)
    chains[3] = "00" * 16
    story.checkpoints[2] = CheckpointRecord(old.folder, old.position, tuple(chains))


def no_chain(story: Story) -> None:
    old = story.checkpoints[2]
    story.checkpoints[2] = CheckpointRecord(old.folder, old.position, old.chains[:-1])


def phase_segment(number: int, **fields: object) -> Tamper:
    """Change the segment in a phase fact of the newest incarnation."""

    def apply(story: Story) -> None:
        for i, row in enumerate(story.facts):
            if (
                isinstance(row.fact, PhaseFact)
                and row.fact.spec.number == number
                and row.incarnation == story.incarnation
            ):
                fact = PhaseFact(row.fact.spec, replace(row.fact.segment, **fields))
                story.facts[i] = FactRow(row.incarnation, row.version, fact)

    return apply


def base_segment(number: int, **fields: object) -> Tamper:
    """Change a segment, wherever it occurs in the position that the newest incarnation began from."""

    def apply(story: Story) -> None:
        i, fact = _newest(story)
        assert fact.position is not None
        segments = list(fact.position.segments)
        segments[number] = replace(segments[number], **fields)
        phases = list(fact.position.phases)
        phases[number] = replace(phases[number], segment=segments[number])
        position = replace(fact.position, segments=tuple(segments), phases=tuple(phases))
        story.facts[i] = FactRow(story.facts[i].incarnation, story.facts[i].version, replace(fact, position=position))

    return apply


def _newest(story: Story) -> tuple[int, IncarnationFact]:
    i = max(i for i, row in enumerate(story.facts) if isinstance(row.fact, IncarnationFact))
    fact = story.facts[i].fact
    assert isinstance(fact, IncarnationFact)
    return i, fact


def parent(**fields: object) -> Tamper:
    def apply(story: Story) -> None:
        i, fact = _newest(story)
        assert fact.position is not None
        position = replace(fact.position, **fields)
        story.facts[i] = FactRow(story.facts[i].incarnation, story.facts[i].version, replace(fact, position=position))

    return apply


def forget_incarnation(number: int) -> Tamper:
    def apply(story: Story) -> None:
        story.facts[:] = [
            r for r in story.facts if not (isinstance(r.fact, IncarnationFact) and r.fact.number == number)
        ]

    return apply


def double_incarnation(story: Story) -> None:
    story.facts.append(story.facts[_newest(story)[0]])


def forget_job(story: Story) -> None:
    story.facts[:] = [r for r in story.facts if not isinstance(r.fact, JobFact)]
    for i, row in enumerate(story.facts):
        if isinstance(row.fact, IncarnationFact):
            story.facts[i] = FactRow(row.incarnation, row.version, replace(row.fact, position=None))


def other_seed(story: Story) -> None:
    story.facts.append(FactRow(3, 0, JobFact(replace(story.job, seed=8))))


def double(version: int, /, **fields: object) -> Tamper:
    def apply(story: Story) -> None:
        i = at(story, version)
        story.commits.insert(i, replace(story.commits[i], **fields))

    return apply


def take_other_fence(story: Story) -> None:
    """Let one server use, for a slot of version 5, the attempt that counts for another step."""
    i, j = at(story, 5), at(story, 4)
    story.commits[i] = replace(story.commits[i], variants=(((2, 3), (story.commits[j].fences[2],)),))


TAMPERED: list[tuple[Tamper, str, str]] = [
    (drop(9), "version-missing", "version 9 of incarnation 1 is not in the log"),
    (drop(9), "step-missing", r"step 8 \(3 slots\) was never committed"),
    (drop(9), "sample-missing", r"epoch 1 \(phase 0\): 12 samples were never applied: \d+, \d+, \d+, \d+, \d+ …"),
    (drop(10), "step-missing", r"step 9 \(1 slots\) was never committed"),
    (lambda s: s.commits.pop(0), "version-missing", "version 0 of incarnation 0 is not in the log"),
    (change(6, step=4), "step-twice", "step 4 is version 5 and version 6"),
    (change(6, step=4), "step-missing", "step 5 "),
    (change(6, step=4), "sample-twice", r"epoch 0 \(phase 0\): 2 samples were applied more than once: \d+, \d+$"),
    (change(6, step=INIT_STEP), "beginning", "version 6 is step -1"),
    (change(0, step=0), "beginning", "version 0 is step 0"),
    (change(0, fences=(Fence(8, 1), Fence(8, 2))), "slots", "the initial weights are one attempt"),
    (change(6, step=400), "step-unknown", "version 6 is step 400, which no segment plans"),
    (change(6, step=-5), "step-unknown", "version 6 is step -5, which no segment plans"),
    (swap(8, 9), "order", "version 8 is step 8, but step 7 is committed later"),
    (swap(8, 9), "chain", "block .* did not become version 15 by the attempts in the log"),
    (take_fence, "fence-twice", r"attempt \(1, \d+\) counts in slot 1 of step 3 \(version 4\) and in slot 0 of step 4"),
    (swap_fences, "chain", "checkpoint i0000-v0000000006: block .* did not become version 6"),
    (forget_variants, "chain", "did not become version"),
    (short_variant, "slots", r"names 1 attempts for blocks \(0, 1, 4\) of step 2, which has 3 slots"),
    (change(3, fences=(Fence(9, 9),)), "slots", "version 3 names 1 attempts for step 2, which has 3 slots"),
    (change(5, fences=tuple(Fence(9, i) for i in range(7))), "slots", "version 5 names 7 attempts for step 4"),
    (change(3, fences=tuple(Fence(9, i) for i in range(3))), "chain", "block .* did not become version 4"),
    (change(5, staleness=1), "stale", r"version 5 \(step 4\) was computed on a state 1 steps old; the window is 0"),
    (change(5, samples=3.0), "samples", r"version 5 \(step 4\) counts 3 samples and 0 empty slots; the step has 2"),
    (change(2, samples=99.0, empty=1), "samples", "counts 99 samples and 1 empty slots; the step has 12"),
    (change(5, empty=9), "samples", "9 empty slots"),
    (change(2, samples=-1.0, empty=1), "samples", "counts -1 samples"),
    (double(9), "version-twice", "version 9 of incarnation 1 .* occurs twice"),
    (double(8, version=6), "version-twice", "version 6 of incarnation 1 is at or below its beginning"),
    (take_other_fence, "fence-twice", r"slot 2 of step 3 \(version 4\) and in slot 0 of step 4 \(version 5\)"),
    (chain, "chain", r"checkpoint i0001-v\d+: block 3 did not become version 15 by the attempts in the log"),
    (no_chain, "chain", r"checkpoint i0001-v\d+: block 4 .*chain none"),
    (saved(3, version=60), "version-missing", r"checkpoint i0003-v\d+ is version 60 of incarnation 3, which is not in"),
    (saved(3, incarnation=7), "version-missing", "of incarnation 7, which is not in the log"),
    (saved(1, watermark=4), "position", "checkpoint i0000-v0000000006 begins with all steps below 4"),
    (saved(1, above=(9,)), "position", r"checkpoint i0000-v0000000006 begins with all steps below 6 and \[9\]"),
    (saved(1, segments=(segment(step=3),)), "position", "has a segment that incarnation 0 does not have"),
    (parent(version=400), "version-missing", "incarnation 3 begins from version 400 of incarnation 1"),
    (parent(version=14), "position", "incarnation 3 begins with all steps below"),
    (parent(incarnation=3), "lineage", "incarnation 3 cannot begin from incarnation 3"),
    (parent(incarnation=2), "position", "3 began at another position than its checkpoint i0001-v0000000015 records"),
    (parent(incarnation=5), "lineage", "incarnation 3 cannot begin from incarnation 5"),
    (parent(watermark=3), "position", "incarnation 3 begins with all steps below 3"),
    (forget_incarnation(1), "lineage", "does not say how incarnation 1 began"),
    (double_incarnation, "lineage", "incarnation 3 begins twice"),
    (forget_job, "job", "the log has no seed"),
    (other_seed, "job", r"the log names several seeds: \[7, 8\]"),
    (phase_segment(2, offset=4), "phase", "phase 2 was declared as"),
    (phase_segment(2, offset=4), "sample-missing", r"epoch 5 \(phase 2\): 4 samples were never applied: 0, 1, 2, 3$"),
    (phase_segment(2, data_len=9), "phase", "phase 2 was declared as"),
    (phase_segment(2, data_len=9), "sample-missing", r"epoch 5 \(phase 2\): 1 samples were never applied: 9$"),
    (base_segment(1, data_len=27), "sample-missing", r"epoch 2 \(phase 1\): 4 samples were never applied"),
    (phase_segment(2, step=30, end_step=31), "phase", "phase 2 begins at step 30 in epoch 5, not at step 25"),
    (phase_segment(2, step=30), "phase", "the segment of phase 2 has impossible numbers"),
    (phase_segment(2, epoch=6, end_epoch=7), "phase", "phase 2 begins at step .* in epoch 6, not at"),
    (phase_segment(2, slots=0), "phase", "the segment of phase 2 has impossible numbers"),
    (phase_segment(2, end_step=99), "phase", "phase 2 was declared as"),
    (base_segment(1, offset=6), "sample-missing", r"epoch 2 \(phase 1\): 6 samples were never applied"),
    (base_segment(1, batch_size=1), "phase", "phase 1 was declared as"),
    (base_segment(0, end_epoch=1), "phase", "phase 0 was declared as"),
    (base_segment(0, slots=2), "position", "incarnation 3 has a segment that incarnation 1 does not have"),
]  # fmt: skip


@pytest.mark.parametrize(("tamper", "kind", "named"), TAMPERED, ids=lambda v: v if isinstance(v, str) else "")
def test_damage_is_reported_by_kind_and_place(tamper: Tamper, kind: str, named: str) -> None:
    story = eventful()
    assert story.audit().ok
    tamper(story)
    report = story.audit()
    details = [p.detail for p in report.problems if p.kind == kind]
    assert details, f"only {report.problems}"
    assert any(re.search(named, detail) for detail in details), details
    assert not report.ok


def lacking(story: Story, step: int) -> Story:
    """Remove the commit of `step` from the log and renumber the versions after it."""
    (gone,) = (c for c in story.commits if c.step == step)
    story.commits[:] = [
        replace(c, version=c.version - 1) if c.version > gone.version else c for c in story.commits if c is not gone
    ]
    return story


@pytest.mark.parametrize("mode", ["bsp", "ssp:3"])
def test_a_missing_step_is_reported_once_the_window_has_passed_it(mode: str) -> None:
    story = Story(mode, slots=1)
    story.phase(data_len=40)
    report = lacking(story.go(12), 4).audit()
    assert [p.kind for p in report.problems[-2:]] == ["step-missing", "sample-missing"]
    assert report.counts.lost_slots == 1
    assert report.counts.lost_commits == 0


def test_without_a_window_a_missing_step_is_reported_at_the_next_phase_or_checkpoint() -> None:
    for end in ("nothing", "phase", "save"):
        story = Story("asp", slots=1)
        story.phase(data_len=40, epochs=1)
        story.go()
        if end == "phase":
            story.phase(data_len=40)
        elif end == "save":
            story.save()
        kinds = {p.kind for p in lacking(story, 4).audit().problems}
        assert ("step-missing" in kinds) == (end != "nothing")


def test_without_a_window_phases_are_still_committed_in_order() -> None:
    story = Story("asp", slots=1)
    story.phase(data_len=20, epochs=1)
    story.go()
    story.phase(data_len=20, epochs=1)
    story.go()
    assert story.audit().ok
    swap(10, 11)(story)
    (problem,) = (p for p in story.audit().problems if p.kind == "order")
    assert re.search(r"version 10 is step 1\d, but step \d is committed later", problem.detail)


def test_a_segment_that_skips_samples_is_reported() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=20, batch=2, epochs=5)
    story.stop(7)
    story.go()
    story.phase()
    story.rewind(story.save())
    story.go()
    assert story.audit().ok
    i, fact = _newest(story)
    assert fact.position is not None
    first, closing, *rest = fact.position.segments
    moved = replace(fact.position, segments=(first, replace(closing, offset=closing.offset + 2), *rest))
    story.facts[i] = FactRow(1, story.facts[i].version, replace(fact, position=moved))
    details = [p.detail for p in story.audit().problems]
    assert "the segment from step 7 on begins at sample 10 of epoch 1, not at 8 of 1" in details


def test_a_log_that_lacks_any_one_commit_is_reported() -> None:
    """One exception: the audit cannot know of the last commit of an incarnation that a rewind ended."""
    story = eventful()
    last = {c.incarnation: i for i, c in enumerate(story.commits)}
    for i, made in enumerate(story.commits):
        report = audit(story.facts, story.commits[:i] + story.commits[i + 1 :], story.checkpoints)
        assert report.ok == (i == last[made.incarnation] and made.incarnation < 3), made
        assert report.counts.lost_commits == (not report.ok), made


EVENTFUL = eventful()
FIELDS = st.sampled_from(["version", "step", "incarnation", "staleness", "samples", "empty"])
NUMBERS = st.integers(-3, 50) | st.sampled_from([10**9, 10**15, -(10**12)])


@settings(deadline=None)
@given(st.integers(1, EVENTFUL.version), FIELDS, NUMBERS)
def test_a_changed_number_of_a_commit_is_reported(version: int, name: str, value: int) -> None:
    row = at(EVENTFUL, version)
    made = EVENTFUL.commits[row]
    plausible = {"staleness": value <= 0, "empty": 0 <= value <= len(made.fences)}
    if getattr(made, name) == value or plausible.get(name):
        return
    changed = replace(made, **{name: float(value) if name == "samples" else value})
    commits = [*EVENTFUL.commits[:row], changed, *EVENTFUL.commits[row + 1 :]]
    assert not audit(EVENTFUL.facts, sorted(commits, key=lambda c: (c.incarnation, c.version)), EVENTFUL.checkpoints).ok


SEGMENT_FIELDS = st.sampled_from(
    ["step", "phase", "epoch", "offset", "end_step", "end_epoch", "data_len", "slots", "batch_size", "window"]
)
WILD = NUMBERS | st.sampled_from([2**62, -(2**62)])


@settings(deadline=None)
@given(st.dictionaries(SEGMENT_FIELDS, WILD, min_size=1), st.booleans(), st.sampled_from([0, 1, 2]))
def test_a_segment_with_any_numbers_is_reported_and_does_not_raise(
    fields: dict[str, int], drop_last: bool, number: int
) -> None:
    story = eventful()
    tamper = phase_segment(2, drop_last=drop_last, **fields) if number == 2 else base_segment(number, **fields)
    tamper(story)
    report = story.audit()
    changed = story.facts != EVENTFUL.facts
    assert report.ok == (not changed) or fields.keys() <= {"slots", "window"}


@pytest.mark.timeout(20)
def test_positions_beyond_the_data_are_reported_in_bounded_time() -> None:
    """The permutation has no sample for such positions, so a search for one would not end."""
    story = eventful()
    base_segment(0, end_step=10**9, data_len=10**9, end_epoch=10**9)(story)
    assert not story.audit().ok


@settings(deadline=None)
@given(st.sampled_from(["incarnation", "version", "watermark"]), WILD, st.booleans())
def test_a_position_with_any_numbers_is_reported_and_does_not_raise(name: str, value: int, in_checkpoint: bool) -> None:
    story = eventful()
    (saved(2, **{name: value}) if in_checkpoint else parent(**{name: value}))(story)
    assert story.audit().ok == (story.facts == EVENTFUL.facts and story.checkpoints == EVENTFUL.checkpoints)


def test_problems_beyond_the_limit_are_counted_and_not_listed() -> None:
    story = Story("bsp", slots=1, others=0.0)
    story.phase(data_len=300, batch=1, epochs=1)
    story.go()
    story.commits[:] = [replace(c, samples=0.0) for c in story.commits]
    report = story.audit()
    assert len(report.problems) == LISTED
    assert report.omitted == {"samples": 300 - LISTED}


def test_an_order_that_is_no_permutation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(positions: Indices, plan: PhaseSpec, seed: int, epoch: int) -> Indices:
        return np.where(positions == 3, 0, positions)

    story = Story("bsp", slots=2)
    story.phase()
    story.go()
    monkeypatch.setattr(coverage, "samples_at", broken)
    (first, _) = story.audit().problems
    assert (first.kind, first.detail) == (
        "sample-twice",
        "epoch 0 (phase 0): 1 samples were applied more than once: 0",
    )


@settings(deadline=None)
@given(
    st.integers(0, 60), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9), st.booleans(),
)  # fmt: skip
def test_sample_ranges_equals_sample_range_for_each_step(
    data_len: int, slots: int, batch: int, epochs: int, offset: int, drop_last: bool
) -> None:
    seg = segment(
        step=3, epoch=2, end_epoch=2 + epochs, data_len=data_len, slots=slots, batch_size=batch,
        offset=min(offset, data_len), drop_last=drop_last,
    )  # fmt: skip
    steps = np.arange(3, 3 + num_steps(seg))
    assert [tuple(map(int, at)) for at in zip(*sample_ranges(seg, steps), strict=True)] == [
        sample_range(seg, s) for s in steps.tolist()
    ]


def test_phases_of_a_number_of_steps_share_the_epochs_of_their_data() -> None:
    story = Story("bsp", slots=2)
    for steps in (3, 3, 1, 6):  # an epoch has 5 steps
        story.phase(data_len=18, batch=2, steps=steps)
        story.go()
    report = story.audit()
    assert report.problems == []
    assert (report.counts.epochs, report.counts.samples, report.begun) == (2, 48, ((2, 12),))
    story.phase(data_len=18, batch=2, epochs=1)
    story.go()
    report = story.audit()
    assert report.problems == []
    assert (report.counts.epochs, report.begun) == (3, ((2, 12),)), "a loop over epochs begins with a whole one"


def test_a_phase_that_does_not_go_on_where_the_one_before_it_ended_is_reported() -> None:
    story = Story("bsp", slots=2)
    for _ in range(2):
        story.phase(data_len=18, batch=2, steps=2)
        story.go()
    phase_segment(1, offset=12)(story)
    report = story.audit()
    assert any("in epoch 0 (sample 12 instead of 8)" in problem.detail for problem in report.problems)
    assert any(problem.kind == "sample-missing" for problem in report.problems)


def test_the_steps_of_a_phase_are_those_that_it_was_declared_with() -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=18, batch=2, steps=2)
    story.go()
    phase_segment(0, end_step=3)(story)
    assert any("phase 0 was declared as" in problem.detail for problem in story.audit().problems)
