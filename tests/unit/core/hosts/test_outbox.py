"""Numbered reports: each arrives once and in order, whatever is lost on the way."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.hosts import outbox as outbox_module
from paceline.core.hosts.outbox import MAX_WAITING, MAX_WAITING_NBYTES, Outbox
from paceline.messages.hosts import Report, Reports, RoleLine, SavedPiece


def line(number: int) -> RoleLine:
    return RoleLine("worker-0", 1, "OUT", str(number))


def filled(number: int) -> Outbox:
    outbox = Outbox()
    for n in range(1, number + 1):
        outbox.add(line(n))
    return outbox


def numbers(messages: list[Reports]) -> list[int]:
    """The numbers of all reports; each text must be its number."""
    found = []
    for message in messages:
        for number, report in enumerate(message.items, message.first):
            assert isinstance(report, RoleLine)
            assert report.text == str(number)
            found.append(number)
    return found


def test_reports_are_numbered_from_one_and_sent_once() -> None:
    outbox = filled(3)
    assert numbers(outbox.unsent()) == [1, 2, 3]
    assert outbox.unsent() == []
    outbox.add(line(4))
    assert numbers(outbox.unsent()) == [4]
    assert outbox.last == 4
    assert not outbox.is_empty


def test_an_acknowledged_report_is_forgotten_and_a_new_session_sends_the_others_again() -> None:
    outbox = filled(5)
    outbox.unsent()
    outbox.acknowledge(2)
    assert outbox.acknowledged == 2
    assert outbox.unsent() == [], "the session goes on"
    outbox.rewind(3)
    assert numbers(outbox.unsent()) == [4, 5]
    outbox.acknowledge(5)
    assert outbox.is_empty
    outbox.rewind(5)
    assert outbox.unsent() == []


def test_an_acknowledgement_of_reports_that_were_never_made_changes_nothing_later() -> None:
    outbox = filled(2)
    outbox.acknowledge(900)
    outbox.add(line(3))
    assert numbers(outbox.unsent()) == [3]


def test_messages_are_bounded_in_reports_and_in_bytes() -> None:
    messages = filled(450).unsent()
    assert [len(message.items) for message in messages] == [200, 200, 50]
    outbox = Outbox()
    for offset in range(5):
        outbox.add(SavedPiece("model", offset << 17, bytes(1 << 17), False))
    assert [len(message.items) for message in outbox.unsent()] == [2, 2, 1]


def test_an_agent_stops_to_read_output_while_many_reports_wait() -> None:
    outbox = filled(MAX_WAITING - 1)
    assert not outbox.is_full
    outbox.add(line(MAX_WAITING))
    assert outbox.is_full
    outbox.acknowledge(1)
    assert not outbox.is_full


def test_an_agent_stops_to_read_a_saved_file_while_many_bytes_wait() -> None:
    outbox = Outbox()
    piece = SavedPiece("model", 0, bytes(1 << 17), False)
    for _ in range(MAX_WAITING_NBYTES // (1 << 17)):
        outbox.add(piece)
    assert outbox.is_full
    outbox.acknowledge(2)
    assert not outbox.is_full


def test_few_messages_are_on_their_way_at_once_so_that_no_queue_overflows() -> None:
    outbox = Outbox()
    sent = 0
    for number in range(1, 1001):
        outbox.add(line(number))
        sent += len(outbox.unsent())
    assert sent == outbox_module._IN_FLIGHT
    outbox.acknowledge(1)
    (message,) = outbox.unsent()
    assert len(message.items) == 200, "what had to wait goes out together"
    outbox.acknowledge(sent + 200)
    assert numbers(outbox.unsent()) == list(range(sent + 201, 1001))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["add", "add", "send", "lose", "acknowledge", "again"]), max_size=80))
def test_every_report_arrives_once_and_in_order_whatever_is_lost(steps: list[str]) -> None:
    outbox, seen, arrived = Outbox(), 0, list[Report]()
    has_session = True

    def send() -> None:
        nonlocal seen
        for message in outbox.unsent():
            for number, report in enumerate(message.items, message.first):
                if has_session and number == seen + 1:
                    seen = number
                    arrived.append(report)

    for step in [*steps, "again", "send"]:
        match step:
            case "add":
                outbox.add(line(outbox.last + 1))
            case "send":
                send()
            case "lose":  # what is sent now is lost with the session
                has_session = False
                send()
            case "acknowledge" if has_session:
                outbox.acknowledge(seen)
            case "again":
                has_session = True
                outbox.rewind(seen)
    assert arrived == [line(number) for number in range(1, outbox.last + 1)]
    outbox.acknowledge(seen)
    assert outbox.is_empty


def test_messages_of_an_earlier_session_are_not_on_their_way_any_more() -> None:
    outbox = Outbox()
    for number in range(1, 1001):
        outbox.add(line(number))
        outbox.unsent()
    outbox.rewind(0)
    assert numbers(outbox.unsent()) == list(range(1, 1001))
