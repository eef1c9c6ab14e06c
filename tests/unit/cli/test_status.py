"""What `paceline status` prints about copies and failovers."""

from __future__ import annotations

from typing import Any

from tests.kit.statuses import status

from paceline.cli.status import _copies, _recovered, copies_in_words
from paceline.messages.status import PlacementStatus

STATUS: dict[str, Any] = {
    "servers": ["server-0", "server-1", "server-2"],
    "wanted_servers": 3,
    "replicas": 1,
    "draining": [],
    "processes": [
        {"name": "server-0", "role": "server", "pid": 71, "node": "server-0/1"},
        {"name": "server-1", "role": "server", "pid": 72, "node": "server-1/1"},
    ],
    "placement": {
        "epoch": 3,
        "blocks": 4,
        "servers": {"server-0": [2, 1], "server-1": [2, 3]},
        "short": 0,
        "building": 0,
    },
}


def test_status_shows_the_blocks_of_each_server() -> None:
    assert list(_copies(status(STATUS))) == [
        "server-0 (pid 71): primary of 2 blocks, backup of 1",
        "server-1 (pid 72): primary of 2 blocks, backup of 3",
        "server-2 (not connected): primary of 0 blocks, backup of 0",
        "1 copy of each of 4 blocks, all in sync",
    ]


def test_status_shows_draining_servers_and_missing_copies() -> None:
    placement = {**STATUS["placement"], "short": 1, "building": 1}
    lines = list(_copies(status(STATUS, placement=placement, draining=["server-1"], wanted_servers=2)))
    assert lines[1] == "server-1 (pid 72): primary of 2 blocks, backup of 3, being emptied"
    assert lines[3:] == ["2 servers are wanted", "1 copy of each of 4 blocks; 1 block with fewer; 1 being made"]


def test_status_shows_the_last_change_with_its_reason() -> None:
    changes = [{"number": 1, "kind": "failover", "why": "server-1 is lost (killed)", "age_s": 12.4}]
    assert list(_copies(status(STATUS, changes=changes)))[-1] == "12 s ago: server-1 is lost (killed)"


def test_the_line_of_copies_uses_singular_and_plural() -> None:
    assert copies_in_words(PlacementStatus(blocks=1), 1) == "1 copy of each of 1 block, all in sync"
    line = copies_in_words(PlacementStatus(blocks=5, short=2), 2)
    assert line == "2 copies of each of 5 blocks; 2 blocks with fewer"


def test_status_without_replicas_shows_no_line_of_copies() -> None:
    placement = {**STATUS["placement"], "servers": {"server-0": [4, 0]}}
    changed = status(STATUS, replicas=0, servers=["server-0"], wanted_servers=1, placement=placement)
    lines = list(_copies(changed))
    assert lines == ["server-0 (pid 71): primary of 4 blocks"]


def test_status_shows_the_number_of_failovers_and_the_longest_pause() -> None:
    (line,) = _recovered(status(failovers=2, failover_s=0.84), 1)
    assert line == "a backup took over 2 times; the longest pause of commits was 0.8 s"
    (line,) = _recovered(status(failovers=1, failover_s=0.84), 1)
    assert line.startswith("a backup took over 1 time;")
