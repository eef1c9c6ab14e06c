"""Checkpoints: when one is due, complete, or given up."""

from __future__ import annotations

from tests.kit.core import BLOCKS, HYPER, CoordinatorKit, ServerKit, fence, segment, sent
from tests.kit.restarted_job import save, trained

from paceline.messages import Committed, Ok, Saved, SaveNow, SaveOver
from paceline.types import Commit


def test_a_checkpoint_is_due_every_n_versions_and_one_at_a_time() -> None:
    job = trained(0, checkpoint_steps=2)
    assert [c.save for c in sent(job.finish_step(0), Committed)] == [False, False]
    assert [c.save for c in sent(job.finish_step(1), Committed)] == [True, True]
    job.finish_step(2)
    assert [c.save for c in sent(job.finish_step(3), Committed)] == [False, False], (
        "another checkpoint is being written"
    )
    complete = save(job, 2)
    at = complete.checkpoint.position
    assert (complete.checkpoint.folder, at.version, at.watermark) == ("i0000-v0000000002", 2, 2)
    assert complete.chains == tuple(bytes([b.index]).hex() for b in BLOCKS)
    assert len(complete.files) == 2
    assert job.core.machines.checkpoints.newest is None, "a checkpoint does not count before its marker is written"
    effects = job.wrote(job.core.completed(complete.checkpoint.folder, "", job.now))
    assert job.core.machines.checkpoints.newest == complete.checkpoint
    assert [o.version for o in sent(effects, SaveOver)] == [2, 2]
    assert [c.save for c in sent(job.finish_step(4), Committed)] == [True, True]


def test_a_failed_checkpoint_keeps_the_old_one_and_warns() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.finish_step(2)
    job.finish_step(3)
    effects = job.say("server-0", Saved(0, 1, 4, (), (), "disk full"))
    assert [o.version for o in sent(effects, SaveOver)] == [4, 4]
    assert "disk full" in job.core.machines.checkpoints.warning
    assert "i0000-v0000000002 is kept" in job.core.machines.checkpoints.warning
    assert job.core.machines.checkpoints.newest == complete.checkpoint
    assert job.core.settled
    assert len(sent(job.say("server-1", Saved(0, 1, 4, (), ())), SaveOver, "server-1")) == 1


def test_old_checkpoints_are_removed_when_a_newer_one_is_complete() -> None:
    job = trained(0, checkpoint_steps=1, keep_checkpoints=2)
    dropped = []
    for step in range(4):
        job.finish_step(step)
        complete = save(job, step + 1)
        dropped.append(complete.drop)
        job.core.completed(complete.checkpoint.folder, "", job.now)
    assert dropped == [(), (), ("i0000-v0000000001",), ("i0000-v0000000002",)]
    assert [c.position.version for c in job.core.machines.checkpoints.kept.complete] == [3, 4]


def test_the_last_version_is_saved_when_the_job_ends() -> None:
    job = trained(3, checkpoint_steps=100)
    effects = job.core.finish(job.now)
    assert [(c.commit.version, c.save) for c in sent(effects, Committed)] == [(3, True), (3, True)]
    assert not job.core.settled
    complete = save(job, 3)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    assert job.core.settled
    assert job.core.finish(job.now) == [], "the last version has a checkpoint now"


def test_the_launcher_can_ask_for_a_checkpoint_while_the_job_goes_on() -> None:
    job = trained(3, checkpoint_steps=100)
    effects = job.say("launcher", SaveNow(1))
    assert [ok.req for ok in sent(effects, Ok, "launcher")] == [1]
    assert [(c.commit.version, c.save) for c in sent(effects, Committed)] == [(3, True), (3, True)]
    assert [c.save for c in sent(job.finish_step(3), Committed)] == [False, False], "the next step does not wait for it"
    assert sent(job.say("launcher", SaveNow(2)), Committed) == [], "one is under way"
    complete = save(job, 3)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    newest = job.core.machines.checkpoints.newest
    assert newest is not None
    assert (newest.position.version, newest.position.watermark) == (3, 3)
    effects = job.say("launcher", SaveNow(3))
    assert [(c.commit.version, c.save) for c in sent(effects, Committed)] == [(4, True), (4, True)]


def test_no_checkpoint_is_made_on_demand_if_the_run_makes_none_or_has_it() -> None:
    job = trained(3)
    assert sent(job.say("launcher", SaveNow(1)), Committed) == [], "--checkpoint-every is 0"
    job = trained(0, checkpoint_steps=100)
    assert sent(job.say("launcher", SaveNow(1)), Committed) == [], "no step was committed"


def test_a_server_freezes_the_version_of_a_saving_commit_and_repeats_its_report_until_it_is_answered() -> None:
    kit = ServerKit(segment(slots=1, end_step=10, data_len=20))
    kit.push(0, 0, 5)
    row = Commit(0, 1, 0, (fence(5),), HYPER, 1.0, False, 0, 0)
    kit.tell(Committed(1, kit.core.assignment.epoch, row, save=True))
    assert kit.store.saved == [1]
    assert kit.core.saving.version == 1
    chains = dict(kit.core.own.chains)
    kit.push(1, 0, 6, base=1)
    kit.commit(2, 1, 6)
    assert kit.core.own.chains != chains, "the next commit extends the chains"
    (saved,) = sent(kit.core.saved(1, (), ""), Saved)
    assert dict(saved.chains) == chains, "the chains are those of the frozen version"
    assert sent(kit.core.tick(9.0), Saved) == [saved]
    kit.tell(SaveOver(1, 0, 1))
    assert kit.core.saving.version is None
    assert sent(kit.core.tick(99.0), Saved) == []
    assert kit.core.saved(1, (), "") == [], "the save is over: the server does not report it"


def test_a_checkpoint_whose_manifest_cannot_be_written_does_not_count() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    effects = job.core.completed(complete.checkpoint.folder, "disk full", job.now)
    assert job.core.machines.checkpoints.newest is None
    assert "there is no older one" in job.core.machines.checkpoints.warning
    assert [o.version for o in sent(effects, SaveOver)] == [2, 2]


def _at_the_end_of_a_phase() -> CoordinatorKit:
    """Return a job whose phase has ended at version 4 while the checkpoint of version 2 was being written."""
    job = CoordinatorKit(servers=2, slots=1, checkpoint_steps=2).start(data_len=8).initialise()
    for step in range(4):
        job.finish_step(step)
    assert (job.core.version, job.core.machines.checkpoints.saving) == (4, 2)
    return job


def test_a_checkpoint_that_was_due_while_another_was_written_is_made_up_for_after_a_phase() -> None:
    """No commit follows that could begin it: the script may do other things for hours."""
    job = _at_the_end_of_a_phase()
    assert sent(job.core.tick(job.now), Committed) == [], "one is under way"
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    assert [(c.commit.version, c.save) for c in sent(job.core.tick(job.now), Committed)] == [(4, True), (4, True)]
    assert sent(job.core.tick(job.now + 0.5), Committed) == [], "once"
    complete = save(job, 4)
    assert len(complete.checkpoint.position.phases) == 1
    assert complete.checkpoint.position.phases[0].end_version == 4


def test_a_checkpoint_that_cannot_be_written_is_not_begun_again_and_again() -> None:
    job = _at_the_end_of_a_phase()
    job.core.completed(save(job, 2).checkpoint.folder, "", job.now)
    job.core.tick(job.now)
    job.say("server-0", Saved(0, 1, 4, (), (), "disk full"))
    assert sent(job.core.tick(job.now + 2.0), Committed) == []


def test_the_end_of_a_phase_goes_to_a_checkpoint_a_moment_later_if_the_last_one_has_just_begun() -> None:
    job = CoordinatorKit(servers=2, slots=1, checkpoint_steps=3).start(data_len=8).initialise()
    for step in range(3):
        job.finish_step(step)
    job.core.completed(save(job, 3).checkpoint.folder, "", job.now)
    job.finish_step(3)
    assert sent(job.core.tick(job.now + 0.5), Committed) == []
    assert [(c.commit.version, c.save) for c in sent(job.core.tick(job.now + 1.0), Committed)] == [(4, True), (4, True)]


def test_the_order_to_save_the_end_of_a_phase_is_repeated_to_a_server_that_has_not_reported() -> None:
    job = _at_the_end_of_a_phase()
    job.core.completed(save(job, 2).checkpoint.folder, "", job.now)
    job.core.tick(job.now)
    job.say("server-0", Saved(0, 1, 4, (), ()))
    assert sent(job.core.tick(job.now + 0.5), Committed) == []
    effects = job.core.tick(job.now + 1.0)
    assert [(c.commit.version, c.save) for c in sent(effects, Committed)] == [(4, True)]
    assert sent(effects, Committed, "server-1")
