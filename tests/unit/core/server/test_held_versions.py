"""The versions that a server has: what each contains, and which stay readable."""

from __future__ import annotations

from tests.kit.core import HYPER, Recorder, fence, plan, segment

from paceline.core.server.backups import Backups
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.held_versions import HeldVersions
from paceline.core.server.plan import KnownPlan
from paceline.core.window import Watermark
from paceline.types import INIT_STEP, Commit


def held(window: int = 3) -> HeldVersions:
    known = KnownPlan()
    known.take(plan(segment(slots=1, data_len=200, window=window, end_step=100)))
    return HeldVersions(known, BlockGroup(Recorder()), Backups("s0", Recorder))


def commit(version: int, step: int) -> Commit:
    return Commit(0, version, step, (fence(1),), HYPER, 1.0, False, 0, 0)


def test_a_version_contains_the_steps_that_were_committed_before_it() -> None:
    versions = held()
    for version, step in enumerate((INIT_STEP, 0, 2)):
        versions.advance(commit(version, step))
    assert (versions.applied, versions.mark(1), versions.mark(2)) == (2, 1, 1)
    assert (versions.is_over(0), versions.is_over(1), versions.is_over(2)) == (True, False, True)
    assert versions.age(3, [1, 2]) == (2, 1)


def test_a_gap_is_noticed_once_for_each_version() -> None:
    versions = held()
    assert [versions.notice_gap(1) for _ in range(2)] == [True, False]
    versions.advance(commit(0, INIT_STEP))
    assert [versions.notice_gap(1) for _ in range(2)] == [True, False]


def test_reset_forgets_all_versions() -> None:
    versions = held()
    for version, step in enumerate((INIT_STEP, 0)):
        versions.advance(commit(version, step))
    versions.keep(1)
    versions.follow()
    versions.reset()
    assert (versions.applied, versions.reported, set(versions.kept), versions.mark(1)) == (-1, -2, set(), None)
    versions.restore(7, Watermark(5, (6,)))
    assert (versions.applied, versions.mark(7), versions.is_over(6)) == (7, 5, True)
