"""The checkpoints of the best versions are kept beside the newest ones (`--best`)."""

from __future__ import annotations

from typing import Any

from tests.kit.core import BLOCKS, CoordinatorKit, sent

from paceline.config.policies import PolicySpec
from paceline.core.effects import Complete, Drop, Effect
from paceline.messages import Committed, Declare, EvalGrant, Saved, ValidatorSpec
from paceline.types import SavedFile, Sums


class Kept:
    """A job that is validated every 2 versions, and the folders on its disk."""

    def __init__(self, **spec: Any) -> None:
        policies = PolicySpec(best="acc:max", keep_best=2)
        self.job = CoordinatorKit(workers=2, slots=1, policies=policies, checkpoint_steps=100, **spec)
        self.job.start(data_len=48).initialise()
        for worker in self.job.workers:
            self.job.say(worker, Declare(self.job.req(), ValidatorSpec(0, "check", 2, 2, 2, 0)))
        self.folders: set[int] = set()

    def took(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Complete):
                self.folders |= {effect.checkpoint.position.version}
                self.folders -= {int(folder[-10:]) for folder in effect.drop}
                self.took(self.job.wrote(self.job.core.completed(effect.checkpoint.folder, "", self.job.now)))
            elif isinstance(effect, Drop):
                self.folders -= {int(folder[-10:]) for folder in effect.folders}
        return effects

    def step(self) -> None:
        self.took(self.job.finish_step(self.job.core.watermark.low))

    def save(self, problem: str = "") -> None:
        version = self.job.core.machines.checkpoints.saving
        assert version is not None
        chains = tuple((block.index, bytes([block.index])) for block in BLOCKS)
        file = SavedFile(f"part-{version}", 1, "", tuple(b.index for b in BLOCKS))
        self.took(self.job.say("server-0", Saved(0, 1, version, (file,), chains, problem)))

    def validate(self, value: float) -> None:
        (grant,) = sent(self.job.turn("worker-0", declared=1), EvalGrant)
        self.took(self.job.evaluated("worker-0", grant, {"acc": Sums(2 * value, 2.0)}, declared=1))
        self.job.core.tables.leases.abandon_open("worker-0")

    def two_steps(self, value: float) -> None:
        self.step()
        self.step()
        self.save()
        self.validate(value)


def test_the_best_versions_stay_beside_the_newest_ones() -> None:
    kept = Kept(keep_checkpoints=1)
    for value, folders in (
        (0.5, {2}),
        (0.9, {2, 4}),
        (0.7, {4, 6}),
        (0.6, {4, 6, 8}),  # 8 is the newest
        (0.8, {4, 10}),
        (0.8, {4, 10, 12}),  # of equal values the earlier one is better; 12 is the newest
    ):
        kept.two_steps(value)
        assert kept.folders == folders
    ranked = kept.job.core.machines.checkpoints.kept.ranked()
    assert [(c.position.version, value) for c, value in ranked] == [(4, 0.9), (10, 0.8), (12, 0.8)]


def test_a_version_whose_validation_is_under_way_is_kept_until_its_result_is_known() -> None:
    kept = Kept(keep_checkpoints=1)
    kept.two_steps(0.9)
    kept.two_steps(0.8)
    kept.step()
    kept.step()
    kept.save()
    (grant,) = sent(kept.job.turn("worker-1", declared=1), EvalGrant)
    kept.step()  # version 6 is not validated yet
    kept.took(kept.job.core.finish(kept.job.now))
    kept.save()
    assert kept.folders == {2, 4, 6, 7}
    kept.took(kept.job.evaluated("worker-1", grant, {"acc": Sums(0.2, 2.0)}, declared=1))
    assert kept.folders == {2, 4, 7}


def test_a_commit_that_may_be_one_of_the_best_waits_for_the_checkpoint_under_way() -> None:
    kept = Kept(keep_checkpoints=1)
    kept.step()
    kept.took(kept.job.core.finish(kept.job.now))
    assert kept.job.core.machines.checkpoints.saving == 1
    effects = kept.job.finish_step(1)
    assert (kept.job.core.version, sent(effects, Committed)) == (1, [])
    kept.save()
    assert (kept.job.core.version, kept.job.core.machines.checkpoints.saving) == (2, 2)
    kept.save()
    kept.validate(0.5)
    assert kept.folders == {2}


def test_a_checkpoint_that_fails_lets_the_commit_go_on() -> None:
    kept = Kept(keep_checkpoints=1)
    kept.step()
    kept.took(kept.job.core.finish(kept.job.now))
    kept.job.finish_step(1)
    kept.save("disk full")
    assert kept.job.core.version == 2


def test_without_best_only_validated_versions_by_the_usual_rule_are_saved() -> None:
    job = CoordinatorKit(workers=1, slots=1, checkpoint_steps=100).start(data_len=48).initialise()
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "check", 2, 2, 2, 0)))
    job.finish_step(0)
    job.finish_step(1)
    assert job.core.machines.checkpoints.saving is None
