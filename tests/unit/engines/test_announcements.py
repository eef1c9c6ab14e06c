"""What an engine prints about a run; each event is printed once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.sheet import Sheet
from tests.kit.statuses import status

from paceline.engines.actions import Tell
from paceline.engines.announcements import Announcements, exception_in, not_restarted, restarted, retired, wanted
from paceline.engines.output import Line, Stream
from paceline.engines.restart_policy import Again, GiveUp, Stay
from paceline.runtime.exit_codes import EXIT_AGAIN, EXIT_COLLATERAL, EXIT_DONE, EXIT_LEFT, EXIT_LOST
from paceline.runtime.roles import SERVER, WORKER


@pytest.fixture
def sheet() -> Sheet:
    return Sheet()


@pytest.fixture
def announcements(sheet: Sheet) -> Announcements:
    return Announcements(sheet)


def test_a_warning_about_the_training_is_printed_once(sheet: Sheet, announcements: Announcements) -> None:
    for warnings in ([], ["loss is nan"], ["loss is nan"], [], ["loss is nan", "the schedule has ended"]):
        announcements.status(status({"warnings": warnings}))
    assert sheet.notes == ["warning: loss is nan", "warning: the schedule has ended"]


def test_the_headline_and_its_advice_are_printed_once(sheet: Sheet, announcements: Announcements) -> None:
    announcements.status(status({"headline": None}))
    assert not announcements.begun
    for _ in range(2):
        announcements.status(status({"headline": "bsp", "advice": "use fewer workers"}))
    assert announcements.begun
    assert sheet.notes == ["bsp", "warning: use fewer workers"]
    assert sheet.states == 3


def test_each_rewind_is_printed_once(sheet: Sheet, announcements: Announcements) -> None:
    before = {"rewinds": 3, "recomputed_steps": 40, "version": 9}
    announcements.status(status(before))
    assert sheet.notes == [], "rewinds before the engine's first status are not printed"
    for _ in range(2):
        announcements.status(status({"rewinds": 4, "recomputed_steps": 47, "version": 6}))
    changes = [{"number": 1, "kind": "rewind", "why": "server-0 is lost (killed)", "age_s": 0.1}]
    announcements.status(status({"rewinds": 5, "recomputed_steps": 48, "version": -1, "changes": changes}))
    assert sheet.notes == [
        "warning: a server is lost: the job goes back to version 6 and computes 7 steps again",
        "warning: server-0 is lost (killed): the job begins again and computes 1 step again",
    ]


def test_a_warning_is_printed_when_it_changes(sheet: Sheet, announcements: Announcements) -> None:
    for warning in ("", "disk full", "disk full", "", "disk full"):
        announcements.status(status({"warning": warning}))
    assert sheet.notes == ["warning: disk full", "warning: disk full"]


def test_what_a_script_prints_is_a_result_and_everything_else_is_not(
    sheet: Sheet, announcements: Announcements
) -> None:
    for name, stream in (("worker-0", Stream.OUT), ("worker-0", Stream.ERR), ("server-0", Stream.OUT)):
        announcements.line(Line(name, "x", stream))
    assert sheet.lines == ["worker-0: x", "worker-0: x (error)", "server-0: x (error)"]


def test_last_words_are_kept_for_the_end(sheet: Sheet, announcements: Announcements) -> None:
    for text in ("Traceback (most recent call last):", "ValueError: bad"):
        announcements.line(Line("worker-0", text, Stream.LAST))
    assert sheet.lines == []
    assert announcements.last_words("worker-0") == "Traceback (most recent call last):\nValueError: bad"
    assert announcements.last_words("worker-1") == ""
    announcements.started("worker-0")
    assert announcements.last_words("worker-0") == "", "they are those of an earlier start"


@pytest.mark.parametrize(
    ("trace", "named"),
    [
        ("Traceback (most recent call last):\n  File 'x'\nValueError: bad", "ValueError: bad"),
        ("Traceback (most recent call last):\n  File 'x'\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        (
            "  File 'x'\ntorch.OutOfMemoryError: no memory\n\na note with more words",
            "torch.OutOfMemoryError: no memory",
        ),
        ("the script called exit(3)", "the script called exit(3)"),
        ("", ""),
    ],
)
def test_the_exception_is_found_in_a_traceback(trace: str, named: str) -> None:
    assert exception_in(trace) == named


def test_each_end_of_a_process_is_printed_with_its_reason_and_consequence() -> None:
    told = [
        restarted("worker-1", -9, Again(0.0, 1)),
        restarted("worker-1", EXIT_LOST, Again(0.5, 2)),
        restarted("worker-1", EXIT_AGAIN, Again(0.0, 2)),
        *retired("worker-1", EXIT_LEFT, Stay(), 5),
        *retired("worker-1", -9, GiveUp(6), 5),
        *retired("worker-1", EXIT_COLLATERAL, Stay(), 5),
        *retired("worker-1", EXIT_DONE, Stay(), 5),
    ]
    assert told == [
        Tell("worker-1 was killed by signal 9: restarted (1)", warning=True),
        Tell("worker-1 ended (exit code 3): restarts in 0.5 s (2)", warning=True),
        Tell("worker-1 starts its script again: the job was rewound to before its loop"),
        Tell("worker-1 was told to leave, and has given back its leases"),
        Tell(
            "worker-1 ended (signal 9) 6 times in a row within 10 s of its start, each time without a commit, "
            "and --max-restarts is 5: "
            "it is not restarted",
            warning=True,
        ),
        Tell("worker-1 ended (exit code 4); its slots go to the other workers", warning=True),
    ]
    assert not_restarted("server-0", 1, Stay(), 5) == "server-0 ended (exit code 1)"
    assert not_restarted("server-0", -9, GiveUp(1), 0) == "server-0 ended (signal 9), and --max-restarts is 0"


def change(number: int, kind: str, why: str) -> dict[str, Any]:
    return {"number": number, "kind": kind, "why": why, "age_s": 0.1}


def test_each_failover_and_each_restored_redundancy_is_printed_once(sheet: Sheet, announcements: Announcements) -> None:
    old = change(1, "failover", "server-0 is lost (killed)")
    lost, planned = change(2, "failover", "server-1 is lost (killed)"), change(3, "planned", "copies are made")
    cut = change(1, "shrink", "server-0 cannot reach server-1")
    whole, short = {"short": 0}, {"short": 2}
    for generation, changes, placement in (
        (1, [old], whole),  # happened before the engine's first status
        (1, [old, lost], short),
        (1, [old, lost], short),
        (1, [old, lost, planned], short),
        (1, [old, lost, planned], whole),
        (2, [], whole),
        (2, [cut], short),
        (2, [cut], whole),
    ):
        announcements.status(status({"generation": generation, "changes": changes, "placement": placement}))
    assert sheet.notes == [
        "warning: server-1 is lost (killed): a backup took over",
        "every block has its copies again",
        "warning: server-0 cannot reach server-1: these copies will be made again",
        "every block has its copies again",
    ]


def test_a_changed_number_of_processes_is_printed() -> None:
    told = [*wanted(SERVER, 3, 3), *wanted(SERVER, 1, 3), *wanted(WORKER, 2, 1)]
    assert told == [Tell("1 server wanted instead of 3"), Tell("2 workers wanted instead of 1")]


LOST_0 = change(1, "failover", "server-0 is lost (killed)")
LOST_1 = change(2, "rewind", "server-1 is lost (killed)")
LOST_2 = change(3, "failover", "server-2 is lost (killed)")
BEFORE = {"generation": 1, "rewinds": 0, "recomputed_steps": 0, "version": 9, "changes": []}
AFTER = {"generation": 1, "rewinds": 1, "recomputed_steps": 3, "version": 6}


def test_a_failover_followed_by_a_rewind_is_printed_as_both(sheet: Sheet, announcements: Announcements) -> None:
    for document in (BEFORE, {**BEFORE, "changes": [LOST_0]}, {**AFTER, "changes": [LOST_0, LOST_1]}):
        announcements.status(status(document))
    assert sheet.notes == [
        "warning: server-0 is lost (killed): a backup took over",
        "warning: server-1 is lost (killed): the job goes back to version 6 and computes 3 steps again",
    ]


def test_changes_before_a_rewind_in_the_same_status_are_not_printed(sheet: Sheet, announcements: Announcements) -> None:
    """One status has all changes: the rewind undoes the failover before it."""
    announcements.status(status(BEFORE))
    announcements.status(status({**AFTER, "changes": [LOST_0, LOST_1, LOST_2]}))
    assert sheet.notes == [
        "warning: server-1 is lost (killed): the job goes back to version 6 and computes 3 steps again",
        "warning: server-2 is lost (killed): a backup took over",
    ]
