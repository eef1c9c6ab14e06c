from __future__ import annotations

from collections.abc import Mapping

from paceline.core.hosts.node_agents import (
    BEGIN_S,
    JOIN_S,
    START_S,
    AgentAction,
    AgentEnd,
    GiveBack,
    GiveUp,
    NodeAgents,
    StartAgent,
    StopAgent,
    Warn,
)
from paceline.core.hosts.node_shares import Node, Wanted

TWO = Wanted(4, 2)
A, B, C = Node("a", 2, 2), Node("b", 2, 2), Node("c", 2, 2)


class Story:
    """The agents of a cluster, with a clock."""

    def __init__(self, *nodes: Node, fixed: bool = False) -> None:
        self.agents = NodeAgents("ray", fixed=fixed)
        self.now = 100.0
        self.agents.see(nodes)

    def tick(
        self, joined: Mapping[str, int] | None = None, wanted: Wanted = TWO, after_s: float = 0.2
    ) -> list[AgentAction]:
        self.now += after_s
        return self.agents.tick(self.now, joined or {}, wanted)

    def starts(self, joined: Mapping[str, int] | None = None, wanted: Wanted = TWO, after_s: float = 0.2) -> list[str]:
        return [action.name for action in self.tick(joined, wanted, after_s) if isinstance(action, StartAgent)]

    def end(self, name: str, reason: str = "gone", **how: bool) -> None:
        self.agents.ended(name, self.now, AgentEnd(reason, **how))


def test_each_node_that_the_run_uses_gets_one_agent() -> None:
    story = Story(A, B, C)
    assert story.starts() == ["ray-a", "ray-b"]
    assert story.starts() == []


def test_roles_wait_for_the_agents_that_are_on_their_way() -> None:
    story = Story(A, B)
    assert NodeAgents("ray").coming({}) == 1, "the nodes are not known yet"
    story.tick()
    assert story.agents.coming({}) == 2
    assert story.agents.coming({"ray-a": 0}) == 1
    story.end("ray-b", final=True)
    assert story.agents.coming({"ray-a": 0}) == 0


def test_another_agent_of_a_node_has_another_name_so_that_it_can_join_at_once() -> None:
    story = Story(A, B)
    story.tick()
    story.tick({"ray-a": 2, "ray-b": 2})
    story.end("ray-a", died=True)
    assert story.starts({"ray-b": 2}) == [], "at once it would fail again"
    assert story.starts({"ray-b": 2}, after_s=4.0) == ["ray-a-2"]


def test_the_loss_of_a_node_is_not_told_twice_and_a_spare_node_replaces_it() -> None:
    story = Story(A, B, C)
    story.tick()
    joined = {"ray-a": 2, "ray-b": 2}
    story.tick(joined)
    story.end("ray-a", died=True)
    assert story.tick(joined) == [StartAgent("ray-c", story.agents._agents["ray-c"].share)]
    story.agents.see([B, C])
    assert story.tick(joined, after_s=10.0) == []


def test_a_node_that_vanishes_before_its_actor_is_seen_to_die_is_replaced() -> None:
    story = Story(A, B)
    story.tick()
    joined = {"ray-a": 2, "ray-b": 2}
    story.tick(joined)
    story.agents.see([B, C])
    actions = story.tick(joined)
    assert actions[0] == StopAgent("ray-a")
    assert isinstance(actions[1], StartAgent)
    assert actions[1].name == "ray-c"


def test_a_node_that_joins_is_used_by_a_run_that_wants_all() -> None:
    story = Story(A)
    every = Wanted(2, 1, unlimited=True)
    assert story.starts(wanted=every) == ["ray-a"]
    story.agents.see([A, B])
    assert story.starts({"ray-a": 2}, every) == ["ray-b"]


def test_a_host_that_the_user_drained_is_not_started_again() -> None:
    story = Story(A, B)
    story.tick()
    story.tick({"ray-a": 2, "ray-b": 2})
    story.end("ray-a", left=True)
    assert story.starts({"ray-b": 2}, after_s=60.0) == []


def test_a_surplus_host_is_given_back_after_a_while_and_its_node_can_be_used_again() -> None:
    story = Story(A, B, C)
    story.tick(wanted=Wanted(6, 1))
    joined = {"ray-a": 1, "ray-b": 1, "ray-c": 0}
    assert story.tick(joined, Wanted(4, 1)) == []
    assert story.tick(joined, Wanted(4, 1), after_s=9.0) == []
    assert story.tick(joined, Wanted(4, 1), after_s=2.0) == [GiveBack("ray-c")]
    story.end("ray-c", left=True)
    assert story.starts(joined, Wanted(4, 1), after_s=60.0) == []
    assert story.starts(joined, Wanted(6, 1)) == ["ray-c-2"]


def test_nothing_is_given_back_before_the_run_has_begun() -> None:
    story = Story(A, B, C)
    story.tick(wanted=Wanted(6, 1))
    joined = {"ray-a": 0, "ray-b": 0, "ray-c": 0}
    for _ in range(3):
        assert story.tick(joined, Wanted(4, 1), after_s=20.0) == []


def test_more_roles_than_cores_warns_and_the_run_goes_on() -> None:
    story = Story(A, B)
    actions = story.tick(wanted=Wanted(6, 2))
    assert Warn("the run has 6 roles, its nodes 4 free cores: roles share them") in actions
    assert story.tick(wanted=Wanted(6, 2)) == []


def test_cores_that_others_have_taken_are_shared_with_a_warning() -> None:
    story = Story(A, Node("b", 2, 0))
    actions = story.tick()
    assert [action.share.reserved for action in actions if isinstance(action, StartAgent)] == [2, 0]
    for name in ("ray-a", "ray-b"):
        story.agents.up(name, story.now)
    assert story.tick() == [Warn("node b has no free core: the roles there share its cores with others")]


def test_an_agent_that_a_node_does_not_start_is_tried_again_and_the_run_ends_in_time() -> None:
    story = Story(A, B)
    story.tick()
    late = story.tick(after_s=START_S + 1.0)
    assert late[-2:] == [StopAgent("ray-a"), StopAgent("ray-b")]
    (end,) = [a for a in story.tick(after_s=BEGIN_S) if isinstance(a, GiveUp)]
    assert f"0 of 2 nodes joined within {BEGIN_S:.0f} s" in end.reason
    assert f"node a: the node did not start it within {START_S:.0f} s" in end.reason


def test_an_agent_that_cannot_reach_the_run_names_listen() -> None:
    story = Story(A, B)
    story.tick()
    for name in ("ray-a", "ray-b"):
        story.agents.up(name, story.now)
    actions = story.tick(after_s=JOIN_S + 1.0)
    assert any(isinstance(action, Warn) and "--listen" in action.text for action in actions)


def test_the_run_ends_at_once_when_every_node_has_turned_out_to_be_unusable() -> None:
    story = Story(A, B)
    story.tick()
    for name in ("ray-a", "ray-b"):
        story.end(name, "a has torch none, the supervisor has 2.13", final=True)
    (end,) = [action for action in story.tick() if isinstance(action, GiveUp)]
    assert "torch none" in end.reason


def test_a_cluster_that_cannot_grow_and_has_too_few_nodes_ends_the_run_at_once() -> None:
    (end,) = [action for action in Story(A, fixed=True).tick() if isinstance(action, GiveUp)]
    assert "lower --replicas and --min-hosts" in end.reason
    assert not [action for action in Story(A).tick() if isinstance(action, GiveUp)], "others may add nodes"


def test_a_run_that_has_begun_is_never_given_up() -> None:
    story = Story(A, B)
    story.tick()
    story.tick({"ray-a": 2, "ray-b": 2})
    for name in ("ray-a", "ray-b"):
        story.end(name, "gone", final=True)
    assert not [action for action in story.tick(after_s=BEGIN_S * 2) if isinstance(action, GiveUp)]


def test_a_node_whose_agents_fail_again_and_again_is_left_alone() -> None:
    story = Story(A, B)
    story.tick()
    name = "ray-a"
    for number in range(2, 6):
        story.end(name, "crashed")
        (name,) = story.starts({"ray-b": 2}, after_s=4.0)
        assert name == f"ray-a-{number}"
    story.end(name, "crashed")
    actions = story.tick({"ray-b": 2}, after_s=60.0)
    assert actions == [Warn("the agent on node a has ended: crashed; none is started there again")]


def test_a_host_that_is_given_back_and_stays_is_asked_again() -> None:
    story, joined, fewer = Story(A, B), {"ray-a": 1, "ray-b": 1}, Wanted(2, 1)
    story.tick()
    story.tick(joined, fewer)
    found = [action for _ in range(200) for action in story.tick(joined, fewer) if isinstance(action, GiveBack)]
    assert len(found) in (3, 4), "about every 10 s"
    assert len(set(found)) == 1


def test_a_cluster_that_does_not_tell_its_nodes_ends_the_run_in_time() -> None:
    agents = NodeAgents("ray")
    assert agents.tick(100.0, {}, TWO) == []
    assert agents.coming({}) == 1
    (found,) = agents.tick(100.0 + BEGIN_S + 1.0, {}, TWO)
    assert isinstance(found, GiveUp)


def test_a_run_that_trains_on_its_own_machine_is_never_given_up() -> None:
    story = Story(Node("head", 0, 0))
    local = Wanted(2, 0, has_begun=True)
    assert story.tick(wanted=local) == []
    assert story.tick(wanted=local, after_s=BEGIN_S + 1.0) == []
