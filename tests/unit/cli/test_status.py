"""What `paceline status` says of copies and failovers."""

from __future__ import annotations

from typing import Any

from paceline.cli.status import _copies, _recovered

STATUS: dict[str, Any] = {
    "servers": ["server-0", "server-1", "server-2"],
    "wanted_servers": 3,
    "replicas": 1,
    "draining": [],
    "placement": {
        "epoch": 3,
        "blocks": 4,
        "servers": {"server-0": [2, 1], "server-1": [2, 3]},
        "short": 0,
        "building": 0,
    },
}


def test_who_holds_what() -> None:
    assert list(_copies(STATUS)) == [
        "server-0: primary of 2 blocks, backup of 1",
        "server-1: primary of 2 blocks, backup of 3",
        "server-2: primary of 0 blocks, backup of 0",
        "1 copy of each of 4 blocks, all in sync",
    ]


def test_what_is_under_way() -> None:
    placement = {**STATUS["placement"], "short": 1, "building": 1}
    lines = list(_copies({**STATUS, "placement": placement, "draining": ["server-1"], "wanted_servers": 2}))
    assert lines[1] == "server-1: primary of 2 blocks, backup of 3, being emptied"
    assert lines[3:] == ["2 servers are wanted", "1 copy of each of 4 blocks; 1 blocks lack one; 1 being made"]


def test_without_copies_there_is_nothing_to_say_of_them() -> None:
    placement = {**STATUS["placement"], "servers": {"server-0": [4, 0]}}
    lines = list(
        _copies({**STATUS, "replicas": 0, "servers": ["server-0"], "wanted_servers": 1, "placement": placement})
    )
    assert lines == ["server-0: primary of 4 blocks"]


def test_failovers_are_counted() -> None:
    (line, _) = _recovered({"failovers": 2, "failover_s": 0.84})
    assert line == "a backup took over 2 times; the longest pause of commits was 0.8 s"
