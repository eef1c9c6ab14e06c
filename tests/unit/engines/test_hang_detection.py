"""A process hangs if it took part, is alive, and is silent for too long while the engine listens."""

from __future__ import annotations

from collections.abc import Collection

from paceline.engines.hang_detection import HangDetection

ALIVE = {"coordinator": 1, "server-0": 3, "server-1": 1, "worker-0": 2}
EVERYONE = frozenset(ALIVE.items())


class Watched:
    """An engine that looks four times a second."""

    def __init__(self) -> None:
        self.hanging = HangDetection(15.0)
        self.now = 100.0

    def look(self, seconds: float, taking_part: Collection[tuple[str, int]] | None) -> dict[str, float]:
        """Return the processes that the engine finds to hang in this time."""
        found: dict[str, float] = {}
        for _ in range(round(4 * seconds)):
            self.now += 0.25
            found |= self.hanging.see(self.now, ALIVE, taking_part)
        return found


def test_only_the_coordinator_hangs_while_it_does_not_answer() -> None:
    watched = Watched()
    assert watched.look(60, EVERYONE) == {}
    assert watched.look(15, None) == {}
    assert watched.look(1, None) == {"coordinator": 15.25}
    assert watched.look(60, None) == {}, "a hang is reported once"
    assert watched.look(14, EVERYONE - {("server-0", 3)}) == {}, (
        "the silence of a server begins when the coordinator is back"
    )
    assert set(watched.look(2, EVERYONE - {("server-0", 3)})) == {"server-0"}


def test_a_server_hangs_when_it_is_absent_from_the_status_for_too_long() -> None:
    watched = Watched()
    watched.look(5, EVERYONE)
    assert watched.look(14, EVERYONE - {("server-1", 1)}) == {}
    assert watched.look(5, EVERYONE) == {}, "the server has answered again"
    assert watched.look(15, EVERYONE - {("server-1", 1)}) == {}
    assert set(watched.look(1, EVERYONE - {("server-1", 1)})) == {"server-1"}


def test_a_worker_never_hangs() -> None:
    watched = Watched()
    watched.look(5, EVERYONE)
    assert watched.look(500, EVERYONE - {("worker-0", 2)}) == {}


def test_a_process_that_has_not_taken_part_yet_does_not_hang() -> None:
    watched = Watched()
    assert watched.look(500, None) == {}, "a coordinator may have a long log to read"
    assert watched.look(500, {("coordinator", 1)}) == {}, "a server may have much to load"


def test_the_silence_of_a_restarted_process_begins_anew() -> None:
    watched = Watched()
    watched.look(5, EVERYONE)
    hanging, again = watched.hanging, {**ALIVE, "coordinator": 2}
    for now in range(200, 300):
        assert hanging.see(float(now), again, None) == {}


def test_a_pause_of_the_engine_is_no_silence_of_its_processes() -> None:
    watched = Watched()
    watched.look(5, EVERYONE)
    watched.now += 3600
    assert watched.look(10, None) == {}
    assert watched.look(10, EVERYONE - {("server-0", 3)}) == {}
