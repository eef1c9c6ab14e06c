"""Rule 25, a reader's hold is no pin: reading a version keeps nothing, and stops neither commits nor placements.

A reader asks each server for a version that is not committed yet, and gets it in the moment of its commit. So nothing
is held for it at all. What it asked is void with the epoch or the incarnation, then read anew.

Upheld by:
- `core.server.pulls.Pulls`: a question waits for its version, and is refused in another placement
- `core.predict.reader.Reader`: asks every server for one version, and drops what is not of it
- `coordinator.service.CoordinatorService`: tells a reader where the job stands, and keeps nothing of it
"""

from __future__ import annotations

from tests.kit.core import sent
from tests.kit.placed_server import ALL, Server, placement

from paceline.messages import Pull, PullReply, Refused

READER = "predictor/1"


def pull(exact: int, *, epoch: int = 1, req: int = 1) -> Pull:
    return Pull(req, 0, epoch, exact, blocks=tuple(range(ALL)))


def server() -> Server:
    return Server("s0", placement(1, ("s0",))).begin()


def test_a_reader_gets_a_version_with_its_commit_and_not_before() -> None:
    one = server()
    assert one.say(READER, pull(1)) == []
    early = [*one.push(0, 2), *one.core.proceed()]
    assert sent(early, PullReply) == []
    (answer, *_) = sent(one.commit(1, 2), PullReply)
    assert (answer.version, answer.ahead) == (1, False)


def test_nothing_is_kept_for_a_reader() -> None:
    one = server()
    one.say(READER, pull(2))
    for version in (1, 2, 3):
        one.push(version - 1, version + 1)
        answers = sent(one.commit(version, version + 1), PullReply)
        assert bool(answers) == (version == 2)
    assert one.core.versions.kept == set()
    (refused,) = sent(one.say(READER, pull(2, req=2)), Refused)
    assert refused.rule == "gone"


def test_a_reader_that_has_gone_is_forgotten() -> None:
    one = server()
    one.say(READER, pull(1))
    one.core.forget(READER)
    one.push(0, 2)
    assert sent(one.commit(1, 2), PullReply) == []


def test_a_question_is_void_with_its_placement() -> None:
    one = server()
    one.say(READER, pull(1))
    (refused,) = sent(one.tell(one.assign(placement(2, ("s0",)), at=0)), Refused)
    assert refused.rule == "epoch"
