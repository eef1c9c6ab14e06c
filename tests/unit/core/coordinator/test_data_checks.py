"""Workers that see other samples are refused by name; the first worker defines the data, durably."""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import CoordinatorKit, sent, written

from paceline.core.coordinator.data_checks import changed_file, difference
from paceline.core.effects import DataFact, Effect, WarningFact
from paceline.messages import Abort, CompareData, Ok, Register
from paceline.types import DataFingerprint

USE = "loop number 1 (job.batches)"


def data(*samples: tuple[int, str], length: int = 600, source: str = "", platform: str = "cpu") -> DataFingerprint:
    return DataFingerprint(length, source, platform, samples)


@pytest.fixture
def job() -> CoordinatorKit:
    return CoordinatorKit(workers=2).start(begin=False)


def test_a_changed_file_is_named_also_if_the_machines_or_the_lengths_differ(job: CoordinatorKit) -> None:
    files = (("a.csv", "01"), ("b.csv", "02"))
    _compare(job, "worker-0", msgspec.structs.replace(data(source="csv"), files=files))
    other = msgspec.structs.replace(data(source="csv", length=601, platform="other"), files=(files[0], ("b.csv", "03")))
    abort = sent(_compare(job, "worker-1", other), Abort)[0]
    assert (
        "worker-1 has other data than worker-0 had in loop number 1 (job.batches): b.csv has changed. " in abort.reason
    )


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("a1 b2", ""),
        ("a1", "b is missing"),
        ("a1 b2 c3 d4", "c is new (and 1 more)"),
        ("a2 c3", "a has changed; b is missing; c is new"),
        ("b2 a1", "the files are in another order"),
    ],
)
def test_what_changed_among_files_is_named(names: str, text: str) -> None:
    known = msgspec.structs.replace(data(), files=(("a", "1"), ("b", "2")))
    mine = msgspec.structs.replace(data(), files=tuple((word[0], word[1:]) for word in names.split()))
    assert changed_file(known, mine) == text
    assert changed_file(data(), mine) == ""


def _compare(job: CoordinatorKit, worker: str, mine: DataFingerprint, use: str = USE) -> list[Effect]:
    return job.say(worker, CompareData(job.req(), use, mine))


def test_equal_data_are_accepted(job: CoordinatorKit) -> None:
    effects = _compare(job, "worker-0", data((3, "aa"), (9, "bb")))
    assert len(written(effects, DataFact)) == len(sent(effects, Ok)) == 1
    effects = _compare(job, "worker-1", data((9, "bb")))
    assert (written(effects, DataFact), len(sent(effects, Ok))) == ([], 1)
    assert sent(_compare(job, "worker-1", data((9, "cc")), use="another call"), Ok)


def test_other_samples_fail_the_job_and_name_the_worker(job: CoordinatorKit) -> None:
    _compare(job, "worker-1", data((3, "aa"), (9, "bb")))
    abort = sent(_compare(job, "worker-0", data((9, "b0"), (3, "a0"))), Abort)[0]
    assert abort.reason.startswith(
        "worker-0 has other data than worker-1 had in loop number 1 (job.batches): sample 3 of 600 differs. "
    )
    assert "make a random split after paceline.join()" in abort.reason
    assert job.core.state == "failed"


def test_a_worker_that_starts_again_with_other_data_is_refused_and_the_job_goes_on(job: CoordinatorKit) -> None:
    _compare(job, "worker-0", data((3, "aa")))
    for worker in job.workers:
        job.begin(worker)
    job.initialise()
    job.restart()
    job.say("worker-1", Register(job.req(), "worker", "worker-1", 2, "here", None, job.job))
    (abort,) = sent(_compare(job, "worker-1", data((3, "a0"))), Abort)
    assert "worker-1 has other data than worker-0 had" in abort.reason
    assert job.core.state != "failed"


def test_a_resumed_job_has_the_same_data_unless_changes_are_allowed(job: CoordinatorKit) -> None:
    _compare(job, "worker-0", data((3, "aa")))
    job.begin("worker-0")
    job.initialise()
    job.restart(resume="", allow_changes=True)
    job.restart()
    job.start(begin=False)
    assert sent(_compare(job, "worker-0", data((3, "a0"))), Ok)
    job.restart(resume="")
    job.start(begin=False)
    assert sent(_compare(job, "worker-0", data((3, "a0"))), Ok)
    assert sent(_compare(job, "worker-1", data((3, "aa"))), Abort)


def test_a_resume_with_other_data_says_so(job: CoordinatorKit) -> None:
    _compare(job, "worker-0", data((3, "aa")))
    job.begin("worker-0")
    job.initialise()
    job.restart(resume="")
    job.start(begin=False)
    abort = sent(_compare(job, "worker-0", data((3, "a0"))), Abort)[0]
    assert abort.reason.startswith(
        "the data are not those of the run: in loop number 1 (job.batches), sample 3 of 600 differs (worker-0). Put "
        "the data back as they were, or add --allow-changes"
    )


def test_workers_of_a_resume_with_changes_that_differ_are_told_from_each_other(job: CoordinatorKit) -> None:
    _compare(job, "worker-0", data((3, "aa")))
    job.begin("worker-0")
    job.initialise()
    job.restart(resume="", allow_changes=True)
    job.start(begin=False)
    _compare(job, "worker-0", data((3, "a0")))
    abort = sent(_compare(job, "worker-1", data((3, "a1"))), Abort)[0]
    assert abort.reason.startswith("worker-1 has other data than worker-0 had")


def test_another_platform_is_warned_of(job: CoordinatorKit) -> None:
    _compare(job, "worker-0", data((3, "aa")))
    assert sent(_compare(job, "worker-1", data((3, "a0"), platform="other")), Ok)
    assert "sample 3 of 600 differs; the kind of CPU" in job.core.machines.warnings.texts["data"]


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        (data((3, "aa")), ""),
        (data(), ""),
        (data((5, "zz")), ""),
        (data((3, "a0"), length=7), ""),  # named where the length is compared
        (data((3, "aa"), source="b"), "the source is 'b' instead of ''"),
    ],
)
def test_data_are_compared_where_both_have_a_digest(mine: DataFingerprint, expected: str) -> None:
    assert difference(data((3, "aa"), (9, "bb")), mine) == expected


def test_data_that_do_not_follow_from_the_seed_give_one_warning_by_name(job: CoordinatorKit) -> None:
    mine = msgspec.structs.replace(data(), unstable="sample 16 of Pictures")
    effects = _compare(job, "worker-0", mine)
    assert len(sent(effects, Ok)) == 1
    (warning,) = written(effects, WarningFact)
    assert warning.text.startswith("sample 16 of Pictures (in loop number 1 (job.batches)) differs from one reading")
    assert written(_compare(job, "worker-1", mine), WarningFact) == []


def test_a_fingerprint_of_an_older_log_is_read() -> None:
    old = msgspec.msgpack.encode((600, "", "cpu", ((3, "aa"),)))
    assert msgspec.msgpack.decode(old, type=DataFingerprint).unstable == ""
