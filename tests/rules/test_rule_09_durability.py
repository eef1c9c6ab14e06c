"""Rule 9, durability."""

from __future__ import annotations

from tests.kit.placed_job import compute, epoch, ready, small

from paceline.core.effects import Complete, Send
from paceline.messages import (
    Chained,
    Saved,
    SaveOver,
    Unreachable,
)


def test_files_and_chains_of_an_older_placement_do_not_complete_a_checkpoint() -> None:
    job = small(checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    old = epoch(job)
    for job.now in (0.0, 0.5):
        job.say("server-0", Unreachable("server-1", 3.0, old))
    assert (epoch(job), job.core.saving) == (old + 1, None), "what was being written is void"
    job.wrote(job.core.finish(job.now))
    assert job.core.saving == 1
    chains = ((0, b"right"),)
    assert job.say("server-1", Chained(0, old, 1, ((0, b"wrong"),))) == []
    effects = job.say("server-0", Saved(0, old, 1, (), chains))
    assert [type(e.message) for e in effects if isinstance(e, Send)] == [SaveOver]
    effects = job.say("server-0", Saved(0, epoch(job), 1, (), chains))
    assert [type(e) for e in effects] == [Complete]
