"""Claims: one worker does a task on behalf of all workers."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.restarted_job import worker_back

from paceline.core.effects import WarningFact
from paceline.messages import (
    Claim,
    ClaimDone,
    Claimed,
    Register,
    SavedModel,
)


def test_one_worker_gets_a_claim_and_the_next_one_gets_it_if_the_first_is_lost() -> None:
    job = CoordinatorKit(workers=3).start()
    asked = {w: Claim(job.req(), "save") for w in job.workers}
    assert sent(job.say("worker-0", asked["worker-0"]), Claimed)[0].mine
    assert job.say("worker-1", asked["worker-1"]) == []
    assert job.say("worker-2", asked["worker-2"]) == []
    effects = job.core.lost("worker-0", "killed", job.now)
    assert [c.mine for c in sent(effects, Claimed, "worker-1")] == [True]
    assert sent(job.say("worker-0", ClaimDone(job.req(), "save")), Claimed) == []
    effects = job.say("worker-1", ClaimDone(job.req(), "save"))
    assert [c.mine for c in sent(effects, Claimed, "worker-2")] == [False]
    assert not sent(job.say("worker-0", Register(job.req(), "worker", "worker-0", 1, "here", None, job.job)), Claimed)
    assert [c.mine for c in sent(job.say("worker-0", Claim(job.req(), "save")), Claimed)] == [False]


def test_a_worker_that_claims_a_save_that_was_done_learns_what_the_job_saved_to_that_file_last() -> None:
    job = CoordinatorKit(workers=2, rewinds=True).start()
    first, second = (SavedModel("best.safetensors", digest, "here") for digest in ("aa", "bb"))
    for number, saved in ((1, first), (2, second)):
        key = f"save {number} best.safetensors"
        assert sent(job.say("worker-0", Claim(job.req(), key)), Claimed)[0].mine
        job.say("worker-0", ClaimDone(job.req(), key, saved))
    asked = Claim(job.req(), "save 1 best.safetensors")
    assert sent(job.say("worker-1", asked), Claimed) == [Claimed(asked.req, False, second)]
    job.restart()
    worker_back(job, "worker-1")
    asked = Claim(job.req(), "save 1 best.safetensors")
    assert sent(job.say("worker-1", asked), Claimed) == [Claimed(asked.req, False, second)]


def test_a_worker_that_waited_for_a_save_is_not_told_to_look_at_the_file() -> None:
    """The worker that saved may save again at any time."""
    job = CoordinatorKit(workers=2).start()
    job.say("worker-0", Claim(job.req(), "save"))
    job.say("worker-1", Claim(job.req(), "save"))
    effects = job.say("worker-0", ClaimDone(job.req(), "save", SavedModel("a.safetensors", "aa", "here")))
    assert [claimed.saved for claimed in sent(effects, Claimed, "worker-1")] == [None]


def test_a_worker_that_is_behind_the_job_never_gets_a_task_and_does_not_wait() -> None:
    job = CoordinatorKit(workers=2).start()
    effects = job.say("worker-1", Claim(job.req(), "save 1 best", passed=True))
    assert [c.mine for c in sent(effects, Claimed)] == [False]
    assert written(effects, WarningFact)[0].text.startswith("not done: 'save 1 best'")
    assert sent(job.say("worker-0", Claim(job.req(), "save 1 best")), Claimed)[0].mine, "the other worker does it"
    effects = job.say("worker-1", Claim(job.req(), "save 1 best", passed=True))
    assert [c.mine for c in sent(effects, Claimed)] == [False], "it does not wait for the other worker"
    job.say("worker-0", ClaimDone(job.req(), "save 1 best"))
    effects = job.say("worker-1", Claim(job.req(), "save 1 best", passed=True))
    assert ([c.mine for c in sent(effects, Claimed)], written(effects, WarningFact)) == ([False], [])
