"""What follows when hosts come, leave or are lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tests.contract.dummy_runner import DummyRunner

from paceline.core.hosts.choice import HostLoad
from paceline.engines.actions import Action, Rescale, Tell, Terminate
from paceline.engines.coordinator_client import CoordinatorClient
from paceline.engines.decisions import Decisions
from paceline.engines.host_news import HostNews
from paceline.engines.host_options import HostOptions
from paceline.engines.resume_hint import ResumeHint
from paceline.engines.role_runner import HostGone, HostJoined, HostLeaves, Note
from paceline.messages.hosts import RunningRole
from paceline.messages.status import PlacementStatus, Status


class Client:
    """Notes what the coordinator is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.refused: dict[str, str] = {}

    def host_lost(self, host: str, reason: str, roles: Iterable[tuple[str, int]] = ()) -> None:
        self.told.append(("lost", host, *roles))

    def drain(self, host: str, *, undo: bool = False) -> None:
        self.told.append(("undo" if undo else "drain", host))

    def refused_drains(self) -> dict[str, str]:
        refused, self.refused = self.refused, {}
        return refused


class News:
    """A `HostNews` with what it stands on: two workers and two servers on hosts a and b."""

    def __init__(self, replicas: int = 0, **options: Any) -> None:
        self.runner, self.client = DummyRunner(), Client()
        self.runner.hosts = {"a": ["server-0", "worker-0"], "b": ["server-1", "worker-1"]}
        self.runner.loads = [HostLoad("a", 2, 1, 1), HostLoad("b", 4, 1, 1)]
        self.decisions = Decisions(2, 2, 0, 5, ResumeHint(Path("run"), "30s"), resumed=False, grace_s=30.0)
        for name in self.decisions.first():
            self.decisions.started(name, 1, 0.0)
        hosts = HostOptions(listen="127.0.0.1:1", **options)
        client = cast(CoordinatorClient, self.client)
        self.news = HostNews(hosts, replicas, self.runner, client, self.decisions)

    def handle(self, event: HostJoined | HostGone | HostLeaves | Note) -> list[Action]:
        return list(self.news.handle(event))

    def saw(
        self,
        *,
        draining: tuple[str, ...] = (),
        drained: tuple[str, ...] = (),
        now: float = 9.0,
        placement: PlacementStatus = PlacementStatus(),  # noqa: B008
    ) -> list[Action]:
        status = Status(draining_hosts=draining, drained_hosts=drained, placement=placement)
        return list(self.news.saw(status, now, resizable=True))


def test_notes_and_new_hosts_are_shown() -> None:
    news = News()
    assert news.handle(Note("careful", warning=True)) == [Tell("careful", warning=True)]
    assert news.handle(HostJoined("c", "host c joins: 2 cores")) == [Tell("host c joins: 2 cores")]
    assert news.client.told == []


def test_the_coordinator_learns_of_a_lost_host_at_once() -> None:
    news = News()
    gone = HostGone("a", "why", roles=(RunningRole("server-0", 3),))
    assert news.handle(gone) == [Tell("host a is lost: why", warning=True)]
    assert news.client.told == [("lost", "a", ("server-0", 3))]


def test_the_coordinator_of_an_adopted_run_learns_which_roles_did_not_return() -> None:
    news = News()
    starts = {"coordinator": 2, "server-0": 1, "server-1": 4, "worker-0": 2}
    news.news.adopted(starts, ["server-0", "worker-0"])
    assert news.client.told == [("lost", "", ("server-1", 4))]
    news.news.adopted({"coordinator": 2, "server-0": 1}, ["server-0"])
    assert len(news.client.told) == 1


def test_a_host_that_has_left_may_take_part_again() -> None:
    news = News()
    assert news.handle(HostGone("a", "it is empty", lost=False)) == [Tell("host a has left: it is empty")]
    assert news.client.told == [("undo", "a")]


def test_the_workers_of_a_host_that_leaves_move_and_its_servers_wait_for_their_blocks() -> None:
    news = News()
    assert news.handle(HostLeaves("a")) == []
    assert news.client.told == [("drain", "a")]
    assert news.saw() == [], "the coordinator has not agreed yet"
    assert news.saw(draining=("a",)) == [
        Tell("host a is being emptied: server-0, worker-0 move to other hosts"),
        Terminate("worker-0"),
    ]
    assert news.saw(draining=("a",)) == []
    assert news.runner.told == [("drain", "a")]
    (restart,) = news.decisions.exited("worker-0", 0, 1.0, Status())
    assert isinstance(restart, Tell)
    assert news.decisions.due(1.0) == ["worker-0"], "it is started again, although it ended by itself"


def test_a_host_that_the_status_names_is_emptied_once() -> None:
    news = News()
    assert Terminate("worker-1") in news.saw(draining=("b",))
    assert news.saw(draining=("b",)) == []
    assert news.saw(draining=("unknown",)) == []


def test_the_last_host_stays_and_the_user_is_told_once() -> None:
    news = News()
    news.runner.loads = [HostLoad("a", 2, 1, 1)]
    (told,) = news.handle(HostLeaves("a"))
    assert told == Tell(
        "host a was told to leave, and stays: no other host can take its roles; add one. "
        "A second signal to its agent ends it at once",
        warning=True,
    )
    assert news.client.told == []
    assert news.runner.told == [("undo", "a")], "it takes roles again, and its agent repeats the notice"
    assert news.handle(HostLeaves("a")) == []
    news.runner.loads.append(HostLoad("c", 2))
    news.handle(HostLeaves("a"))
    assert news.client.told == [("drain", "a")], "a host has come that can take the roles"


def test_a_host_without_roles_leaves_at_once() -> None:
    news = News()
    news.runner.hosts["c"] = []
    assert news.handle(HostLeaves("c")) == []
    assert news.runner.told == [("dismiss", "c")]
    assert news.client.told == []


def test_a_drain_that_the_coordinator_refuses_is_shown_and_asked_for_again() -> None:
    news = News()
    news.handle(HostLeaves("a"))
    news.client.refused = {"a": "the run refuses the request: no"}
    (told,) = news.saw()
    assert isinstance(told, Tell)
    assert told.warning
    assert "host a was told to leave, and stays: the run refuses the request: no." in told.text
    assert news.runner.told == [("undo", "a")]
    news.handle(HostLeaves("a"))
    assert news.client.told == [("drain", "a")] * 2


def test_an_empty_host_is_dismissed_when_its_processes_have_ended() -> None:
    news = News()
    news.saw(draining=("a",), drained=("a",))
    assert ("dismiss", "a") not in news.runner.told
    news.runner.hosts["a"] = []
    news.saw(draining=("a",), drained=("a",))
    assert ("dismiss", "a") in news.runner.told


def test_a_drain_that_is_undone_lets_the_host_take_roles_again() -> None:
    news = News()
    news.saw(draining=("a",))
    news.saw()
    assert news.runner.told == [("drain", "a"), ("undo", "a")]
    assert Terminate("worker-0") in news.saw(draining=("a",)), "a later drain counts anew"


def test_auto_and_per_host_follow_the_hosts() -> None:
    news = News(auto_workers=True, servers_per_host=True)
    assert news.news.size() == (4, 2)
    assert news.saw() == [Rescale(4, 2)]
    news.runner.loads.append(HostLoad("c", 3))
    assert news.saw(now=10.0)[0] == Rescale(6, 3)
    news.runner.loads = []
    assert news.news.size() == (2, 2), "with no host there, the numbers stay"


def test_per_host_keeps_enough_servers_for_the_copies() -> None:
    assert News(replicas=2, servers_per_host=True).news.size() == (2, 3)


def test_a_run_without_servers_gets_none_although_it_had_one_on_each_host() -> None:
    news = News(servers_per_host=True)
    news.decisions.resize(2, 0)
    assert news.news.size() == (2, 0)


def test_given_numbers_do_not_follow_the_hosts() -> None:
    news = News()
    assert news.news.size() == (2, 2)
    assert news.saw() == []


def test_a_worker_moves_from_a_crowded_host_once_in_a_while() -> None:
    news = News()
    news.runner.loads = [HostLoad("a", 1, 1, 1), HostLoad("b", 4, 1, 1)]
    assert news.saw(now=100.0)[-1] == Terminate("worker-0")
    assert news.saw(now=100.1) == []


def test_a_server_moves_to_a_host_without_one_if_all_copies_are_on_too_few_hosts() -> None:
    """After the loss of a host both copies are on one: without a move, the next loss would be a rewind."""
    news = News(replicas=1)
    news.runner.hosts = {"a": ["server-0", "worker-0", "server-1"], "b": ["worker-1"]}
    news.runner.loads = [HostLoad("a", 4, 1, 2), HostLoad("b", 4, 1, 0)]
    for not_whole in (PlacementStatus(), PlacementStatus(blocks=4, short=1), PlacementStatus(blocks=4, building=1)):
        assert news.saw(now=100.0, placement=not_whole) == []
        news.news._next_move = 0.0
    told, moved = news.saw(now=100.0, placement=PlacementStatus(blocks=4))
    assert told == Tell("server-1 moves from host a, so that copies are on different hosts")
    assert moved == Terminate("server-1")
    assert news.saw(now=100.1, placement=PlacementStatus(blocks=4)) == []
    (again,) = news.decisions.exited("server-1", 0, 101.0, Status())
    assert again == Tell("server-1 has left its host, and starts on another one")
    assert news.decisions.due(101.0) == ["server-1"]
