"""A reader against servers of a few lines that commit at their own pace, fail over, rewind and stop."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from paceline.core.effects import Send
from paceline.core.layout import cut
from paceline.core.predict.reader import Fill, Output, Reader, ReaderLimits, Restart, Whole
from paceline.messages import BlockFrame, Follow, Following, Pull, PullReply, Refused
from paceline.types import COORDINATOR, Kind, ModelSpec, OptimizerSpec, Placement, TensorSpec

MODEL = ModelSpec((TensorSpec("w", (1 << 17,), "float32", Kind.PARAMETER, 0),), OptimizerSpec("SGD", ({},)))
BLOCKS = cut(MODEL.tensors)


@dataclass
class Job:
    """The log, and servers that apply its commits late. A block changes in some versions only."""

    seed: int
    servers: int = 2
    incarnation: int = 0
    epoch: int = 1
    version: int = 0
    applied: dict[str, int] = field(default_factory=dict)
    parked: dict[str, Pull] = field(default_factory=dict)
    answers: list[tuple[str, object, tuple[object, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.applied = dict.fromkeys(self.names, 0)

    @property
    def names(self) -> list[str]:
        return [f"server-{n}" for n in range(self.servers)]

    @property
    def placement(self) -> Placement:
        owners = tuple(self.names[(b.index + self.epoch) % self.servers] for b in BLOCKS)
        return Placement(self.epoch, owners, dict.fromkeys(self.names, "tcp://x"))

    def value(self, block: int, version: int) -> tuple[int, int, int]:
        """What `block` has at `version`: the last version at or before it that changed the block."""
        while version > 0 and (version * 7 + block) % 3 == 0:
            version -= 1
        return self.incarnation, block, version

    def commit(self) -> None:
        self.version += 1

    def apply_some(self) -> None:
        for name in self.names:
            if self.applied[name] < self.version and self.random.random() < 0.7:
                self.applied[name] += 1
                if (pull := self.parked.pop(name, None)) is not None:
                    self.pull(name, pull)

    def pull(self, name: str, pull: Pull) -> None:
        if (pull.incarnation, pull.epoch) != (self.incarnation, self.epoch):
            self.answers.append((name, Refused(pull.req, "epoch", ""), ()))
        elif pull.exact < self.applied[name]:
            self.answers.append((name, Refused(pull.req, "gone", ""), ()))
        elif pull.exact > self.applied[name]:
            self.parked[name] = pull
        else:
            found = [b for b in pull.blocks or () if pull.have < 0 or self.value(b, pull.exact)[2] > pull.have]
            half = len(found) // 2
            for part, blocks in enumerate((found[:half], found[half:])):
                frames = tuple(BlockFrame(b, "float32", BLOCKS[b].numel) for b in blocks)
                reply = PullReply(pull.req, self.incarnation, pull.exact, 0, frames, part, 2)
                self.answers.append((name, reply, tuple(self.value(b, pull.exact) for b in blocks)))

    def follow(self, follow: Follow) -> None:
        model = None if follow.knows_model else MODEL
        answer = Following(follow.req, 1, self.incarnation, self.version, 0.0, self.placement, model)
        self.answers.append((COORDINATOR, answer, ()))

    def fail_over(self) -> None:
        self.epoch += 1
        self.parked.clear()
        self.applied = dict.fromkeys(self.names, self.version)

    def rewind(self) -> None:
        self.incarnation += 1
        self.version = max(0, self.version - 3)
        self.fail_over()


@dataclass
class Shell:
    """Keeps what a follower would keep: the whole version, and the next one beside it."""

    reader: Reader = field(default_factory=lambda: Reader(ReaderLimits(interval_s=0.01, rest=1.0)))
    blocks: dict[int, object] = field(default_factory=dict)
    coming: dict[int, object] = field(default_factory=dict)
    seen: list[tuple[int, int]] = field(default_factory=list)

    def carry_out(self, job: Job, outputs: list[Output], payload: tuple[object, ...] = ()) -> None:
        for output in outputs:
            match output:
                case Send(message=Follow() as follow):
                    job.follow(follow)
                case Send(to=to, message=Pull() as pull):
                    job.pull(to, pull)
                case Fill(blocks=blocks):
                    self.coming.update(zip(blocks, payload, strict=True))
                case Restart():
                    self.coming = {}
                case Whole(incarnation=incarnation, version=version):
                    self.blocks, self.coming = {**self.blocks, **self.coming}, {}
                    assert incarnation == job.incarnation
                    assert self.blocks == {b.index: job.value(b.index, version) for b in BLOCKS}
                    self.seen.append((incarnation, version))

    def run(self, job: Job, seconds: float, start: float, *, commit_every: float = 0.02, deliver: float = 0.8) -> float:
        """Let time pass. Answers come in order, sometimes late."""
        now, due = start, start
        while now < start + seconds:
            now += 0.005
            if commit_every and now >= due:
                due += commit_every
                job.commit()
            job.apply_some()
            self.carry_out(job, self.reader.tick(now))
            for name in job.names:
                self.reader.up(name)
            while job.answers and job.random.random() < deliver:
                sender, message, payload = job.answers.pop(0)
                self.carry_out(job, self.reader.handle(sender, message, now), payload)  # type: ignore[arg-type]
        return now


@pytest.mark.parametrize("seed", range(10))
def test_every_version_that_is_whole_is_one_version_through_failovers_and_rewinds(seed: int) -> None:
    job, shell = Job(seed), Shell()
    now = shell.run(job, 1.0, 0.0)
    for change in (job.fail_over, job.rewind, job.fail_over):
        change()
        now = shell.run(job, 1.0, now)
    assert len(shell.seen) > 10
    assert {incarnation for incarnation, _ in shell.seen} == {0, 1}
    in_order = [version for incarnation, version in shell.seen if incarnation == 1]
    assert in_order == sorted(in_order)
    assert shell.seen[-1][1] > job.version - 60


def test_a_reader_learns_how_far_ahead_it_must_ask_and_falls_back() -> None:
    job, shell = Job(1), Shell()
    now = shell.run(job, 3.0, 0.0, commit_every=0.006, deliver=0.25)  # an answer takes several commits
    assert shell.reader.ahead > 2
    count = len(shell.seen)
    assert count >= 5
    now = shell.run(job, 3.0, now, commit_every=0.4)
    assert shell.reader.ahead <= 2
    assert len(shell.seen) >= count + 3


def test_a_job_that_makes_no_version_is_read_as_it_stands_and_once() -> None:
    job, shell = Job(2, version=0), Shell()
    for _ in range(5):
        job.commit()
    now = shell.run(job, 2.0, 0.0, commit_every=0.0)
    assert shell.seen == [(0, 5)]
    job.commit()
    shell.run(job, 1.0, now, commit_every=0.0)
    assert shell.seen == [(0, 5), (0, 6)]


def test_the_answer_of_a_read_that_was_given_up_is_not_used() -> None:
    reader, job = Reader(), Job(3, servers=1)
    reader.up("server-0")
    (ask,) = reader.tick(0.0)
    assert isinstance(ask, Send)
    (pull,) = reader.handle(COORDINATOR, Following(1, 1, 0, 4, 0.0, job.placement, MODEL), 0.0)
    assert isinstance(pull, Send)
    assert isinstance(pull.message, Pull)
    frames = (BlockFrame(0, "float32", BLOCKS[0].numel),)
    part = PullReply(pull.message.req, 0, 5, 0, frames, 0, 2)
    assert reader.handle("server-0", part, 0.0) == [Fill((0,))]
    assert reader.down("server-0") == [Restart()]
    assert reader.handle("server-0", part, 0.1) == []
    assert reader.version == -1


def test_what_is_computed_ahead_of_its_commit_is_never_used() -> None:
    reader, job = Reader(), Job(3, servers=1)
    reader.up("server-0")
    reader.tick(0.0)
    (pull,) = reader.handle(COORDINATOR, Following(1, 1, 0, 4, 0.0, job.placement, MODEL), 0.0)
    assert isinstance(pull, Send)
    assert isinstance(pull.message, Pull)
    assert not pull.message.ahead
    early = PullReply(pull.message.req, 0, 5, 0, (), ahead=True)
    assert reader.handle("server-0", early, 0.0) == []
    other = PullReply(pull.message.req, 0, 6, 0, ())
    assert reader.handle("server-0", other, 0.0) == []
    assert reader.version == -1


def test_a_version_that_was_gone_makes_the_next_read_ask_for_a_later_one() -> None:
    reader, job = Reader(), Job(3, servers=1)
    reader.up("server-0")
    asked = []
    for _ in range(3):
        reader.tick(0.0)
        (pull,) = reader.handle(COORDINATOR, Following(1, 1, 0, 4, 0.0, job.placement, MODEL), 0.0)
        assert isinstance(pull, Send)
        assert isinstance(pull.message, Pull)
        asked.append(pull.message.exact)
        reader.handle("server-0", Refused(pull.message.req, "gone", ""), 0.0)
    assert asked == [5, 6, 8]
