"""The coordinator knows samplers by what they say themselves: soft state, beside the members of the job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.kit.core import CoordinatorKit, sent, written

from paceline.core.coordinator.events import SlotSealed, WorkersGone
from paceline.core.effects import Send, WarningFact
from paceline.messages import Abort, SamplerBeat, SamplerNews, Samplers, SamplerWork, Scale, Sealed
from paceline.types import Fence

BEAT = SamplerBeat(1, "sampler-0", 1, "here", "tcp://h:1", 0, SamplerWork())
NODE = "sampler-0/1-5-ab"


@pytest.fixture
def job() -> CoordinatorKit:
    return CoordinatorKit(workers=2).start().initialise()


def test_workers_learn_who_the_samplers_are_and_a_new_one_too(job: CoordinatorKit) -> None:
    effects = job.say(NODE, BEAT)
    assert [message.samplers for message in sent(effects, Samplers)] == [((NODE, "tcp://h:1"),)] * 2
    (news,) = sent(effects, SamplerNews)
    assert (news.state, news.closed, news.samplers) == ("running", 0, ((NODE, "tcp://h:1"),))
    assert sent(job.say(NODE, replace(BEAT, req=2)), Samplers) == []
    assert len(sent(job.join("worker-7"), Samplers)) == 1


def test_a_later_start_takes_the_place_of_an_earlier_one(job: CoordinatorKit) -> None:
    job.say(NODE, BEAT)
    later = job.say("sampler-0/2-6-cd", replace(BEAT, start=2, address="tcp://h:2"))
    assert {message.samplers for message in sent(later, Samplers)} == {(("sampler-0/2-6-cd", "tcp://h:2"),)}
    (abort,) = sent(job.say(NODE, BEAT), Abort)
    assert abort.kind == "lost"


def test_a_silent_sampler_is_forgotten_and_nothing_else_follows(job: CoordinatorKit) -> None:
    job.say(NODE, BEAT)
    known = job.core.machines.samplers.known
    assert len(known) == 1
    job.core.tables.clock.set(job.core.tables.clock.now + 11.0)
    told = [output.message for output in job.core.machines.samplers.tick() if isinstance(output, Send)]
    assert told == [Samplers(job.core.generation, ())] * 2
    assert not known


def test_the_wanted_number_is_what_a_user_said_last(job: CoordinatorKit) -> None:
    samplers = job.core.machines.samplers
    job.say("engine", Scale(job.req(), 2))
    assert samplers.wanted is None
    job.say("engine", Scale(job.req(), 2, 0, 3))
    job.say("engine", Scale(job.req(), 3))
    assert samplers.wanted == 3
    job.say("engine", Scale(job.req(), 0, 0, 0))
    assert samplers.wanted == 0


def test_input_that_limits_the_run_is_said_once_with_the_dial(job: CoordinatorKit) -> None:
    waits = job.core.machines.data_waits
    report = Sealed(0, 0, Fence(1, 1), 1.0, ({"lr": 0.1},), {}, 1.0, {}, 9.0)
    texts: list[WarningFact] = []
    for now in (2.0, 4.0, 6.0):
        assert waits.sealed(SlotSealed(report, "worker-1")) == []
        texts += written(job.core.tick(job.now + now), WarningFact)
    (fact,) = texts
    assert "workers wait 90% of their time for data" in fact.text
    assert "`paceline run --samplers 2`" in fact.text
    assert (waits.waited_s, waits.computed_s, waits.shares) == (27.0, 3.0, {"worker-1": 0.9})
    waits.workers_gone(WorkersGone(("worker-1",), lost=True))
    assert waits.shares == {}
