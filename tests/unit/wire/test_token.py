"""The job's token: its length, and the keys and tickets derived from it."""

from __future__ import annotations

import pytest

from paceline.wire.handshake import ClientHandshake
from paceline.wire.token import TicketGate, curve_secret, make_ticket, new_token

TOKEN = bytes(range(32))
OTHER = bytes(range(1, 33))


def test_tokens_are_random_and_long_enough() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) == 32
    for short in (b"", b"secret", bytes(15)):
        with pytest.raises(ValueError, match="at least 16 bytes"):
            ClientHandshake("w", short)


def test_the_curve_key_is_a_function_of_the_token_alone() -> None:
    assert curve_secret(TOKEN) == curve_secret(TOKEN)
    assert curve_secret(TOKEN) != curve_secret(OTHER)
    assert len(curve_secret(TOKEN)) == 32
    assert TOKEN not in curve_secret(TOKEN)


def test_token_check_accepts_a_ticket_once_and_only_of_the_same_token() -> None:
    gate = TicketGate(TOKEN, 5000)
    name, password = make_ticket(TOKEN, 5000)
    assert not gate.admits(name, password[:-1])
    assert not gate.admits(name, "")
    assert not gate.admits("", "")
    assert not gate.admits(name + "0", password)
    assert not gate.admits("\xff", "\xff")
    assert not gate.admits(*make_ticket(OTHER, 5000))
    assert not gate.admits(*make_ticket(TOKEN, 5001))
    assert gate.admits(name, password)
    assert not gate.admits(name, password), "a ticket is valid for one connection"


def test_a_gate_remembers_a_bounded_number_of_tickets() -> None:
    gate = TicketGate(TOKEN, 5000, remember=10)
    tickets = [make_ticket(TOKEN, 5000) for _ in range(50)]
    assert all(gate.admits(*ticket) for ticket in tickets)
    assert not any(gate.admits(*ticket) for ticket in tickets[-10:])
