"""A run on three hosts, which are network namespaces: one is killed and returns, one leaves, strangers are refused.

The agent of one is cut off from the supervisor, and the supervisor is killed and its run adopted.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.kit.ports import free_port
from tests.kit.real_runs import PACELINE, SCRIPTS, background, environment, launched_warm, run
from tests.kit.signals import until_it_handles

from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir
from paceline.testing import network as network_module
from paceline.testing.host_cluster import HostCluster, has_hosts
from paceline.testing.hosts.watch import RunWatch
from paceline.testing.launch import Launched
from paceline.testing.network import problem
from paceline.wire.token import new_token

_why = problem()
as_root = pytest.mark.skipif(_why is not None, reason=str(_why))

HOSTS = ("a", "b", "c")
Starts = set[tuple[str, int]]
ROWS = 64
BESIDE = """
import torch

def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
"""


def make_code(folder: Path) -> Path:
    """A script with a module and a data file of its own; returns the script."""
    folder.mkdir()
    shutil.copy(SCRIPTS / "on_hosts.py", folder / "train.py")
    (folder / "beside.py").write_text(BESIDE)
    (folder / "rows.txt").write_text("\n".join(str(number % 7 / 7) for number in range(ROWS)))
    return folder / "train.py"


@dataclass(slots=True)
class Story:
    """What was seen of the run on three hosts. `codes` and `texts` are those of commands, by what they did.

    `starts` has the (name, start) of all roles before and after something that must not end them.
    """

    folder: Path
    run: RunDir
    output: str = ""
    code: int | None = None
    rewinds: int = -1
    codes: dict[str, int | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    family: list[psutil.Process] = field(default_factory=list)
    starts: dict[str, tuple[Starts, Starts]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.run.summary_file.read_text())
        return found

    def ended(self, what: str, agent: Launched, timeout_s: float = 30.0) -> None:
        self.codes[what] = agent.wait(timeout_s)
        self.texts[what] = agent.out.read_text()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("hosts")
    work = make_code(folder / "code").parent
    with contextlib.chdir(work), launched_warm(), HostCluster(folder / "cluster", HOSTS, environment()) as cluster:
        story = Story(folder, cluster.run_dir)
        for host in HOSTS:
            cluster.agent(host)
        words = ["-w", 3, "-s", 3, "--replicas", 1, "--min-hosts", 3, "--checkpoint-every", "0"]
        cluster.start(*words, work / "train.py")
        with RunWatch(cluster) as watch:
            play(story, cluster)
        story.problems = watch.problems
        story.family = cluster.run.family()
        cluster.stop()
        story.code = cluster.run.wait(40.0)
        story.output = cluster.run.out.read_text()
        for host in HOSTS:
            story.ended(f"{host} at the end", cluster._agents[host])
    return story


def play(story: Story, cluster: HostCluster) -> None:
    """What happens while the run trains."""
    cluster.until(lambda s: has_hosts(s, HOSTS, 1) and s.version > 3, "all hosts with copies of all blocks")
    strangers(story, cluster)
    cluster.kill("a")
    cluster.agent("a")  # before anybody has noticed the loss
    lost = cluster.until(lambda s: not has_hosts(s, HOSTS, 1), "the loss of host a")
    cluster.until(lambda s: has_hosts(s, HOSTS, 1) and s.version > lost.version + 3, "the return of host a")
    leaving = cluster._agents["b"]
    cluster.terminate("b")
    story.ended("leaves", leaving, 60.0)
    left = cluster.until(lambda s: not any(p.host == "b" for p in s.processes), "the end of all roles of host b")
    cluster.until(lambda s: s.version > left.version + 3, "a commit without host b")
    story.ended("drain unknown", cluster.launch("supervisor", ["drain", cluster.run_dir.path, "z"], "drain.txt"))
    cut_agent(story, cluster)
    story.rewinds = adopt(story, cluster).rewinds


def cut_agent(story: Story, cluster: HostCluster) -> None:
    """Cut the agent of host c off from the supervisor until this is noticed; its roles reach the coordinator."""
    before = cluster.until(lambda s: has_hosts(s, ("a", "c"), 1), "copies of all blocks on hosts a and c")
    with cluster.cut_agent("c"):
        wait_for_text(cluster, "the agent of host c does not answer")
        during = cluster.until(lambda s: s.version > before.version + 3, "a commit without the agent")
    wait_for_text(cluster, "host c is back", "the agent of host c answers again")
    story.starts["agent cut"] = starts(before), starts(during)


def adopt(story: Story, cluster: HostCluster) -> Status:
    """Kill the supervisor, and let another one adopt the run."""
    before = cluster.until(lambda s: has_hosts(s, ("a", "c"), 1), "copies of all blocks on hosts a and c")
    cluster.kill_supervisor()
    cluster.forget()
    cluster.adopt()
    after = cluster.until(lambda s: s.version > before.version + 3, "a commit after the adoption")
    story.starts["adoption"] = starts(before), starts(after)
    return after


def starts(status: Status) -> Starts:
    """Return the (name, start) of each role that takes part."""
    return {(process.name, process.start) for process in status.processes}


def wait_for_text(cluster: HostCluster, *texts: str) -> None:
    """Wait until the run has shown one of the texts."""
    deadline = time.monotonic() + 30.0
    while not any(text in cluster.run.out.read_text() for text in texts):
        assert time.monotonic() < deadline, cluster.run.out.read_text()
        time.sleep(0.05)


def strangers(story: Story, cluster: HostCluster) -> None:
    """An agent with another token, and a second agent called a."""
    wrong = cluster.folder / "wrong.token"
    wrong.write_text(new_token().hex())
    address = f"{cluster.address('supervisor')}:7411"
    words = ["agent", address, "--name"]
    twice = cluster.launch("b", [*words, "a", "--token-file", cluster.token], "twice.txt")
    other = cluster.launch("c", [*words, "d", "--token-file", wrong], "wrong.txt")
    story.ended("name twice", twice)
    story.ended("wrong token", other)


@as_root
def test_the_result_is_that_of_one_machine(story: Story, tmp_path: Path) -> None:
    assert story.code == 0, story.output
    steps = str(story.summary["steps"])
    work = make_code(tmp_path / "code").parent
    command = [*PACELINE, "run", "--dir", tmp_path / "run", "-w", "1", "-s", "1", "--checkpoint-every", "0"]
    run([*command, "--max-steps", steps, work / "train.py", "--quick"], work).check()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["digest"] == story.summary["digest"]


@as_root
def test_the_loss_of_a_host_and_the_leave_of_another_undo_nothing(story: Story) -> None:
    assert story.rewinds == 0
    assert "host a is lost" in story.output
    assert "host b is being emptied" in story.output
    assert "host b has left" in story.output
    after = story.output[story.output.index("host b has left") :]
    assert "host b joins" not in after, "an agent that ends does not offer its host again"
    assert story.codes["leaves"] == 0, story.texts["leaves"]
    assert "told to leave" in story.texts["leaves"]


@as_root
@pytest.mark.parametrize("what", ["agent cut", "adoption"])
def test_roles_go_on_without_their_agent_or_supervisor(story: Story, what: str) -> None:
    before, after = story.starts[what]
    assert {name.partition("-")[0] for name, _ in before} == {"server", "worker"}
    assert before <= after, "others may have started meanwhile"


@as_root
def test_no_name_lived_twice(story: Story) -> None:
    assert story.problems == []


@as_root
def test_a_host_that_cannot_be_drained_is_refused_with_the_reason(story: Story) -> None:
    assert story.codes["drain unknown"] == 2
    assert "no process of this job runs on host 'z'; it runs on a, c" in story.texts["drain unknown"]


@as_root
def test_strangers_end_with_the_remedy_and_the_run_goes_on(story: Story) -> None:
    assert (story.codes["name twice"], story.codes["wrong token"]) == (2, 2), story.texts
    assert "give each host its own --name" in story.texts["name twice"]
    assert "give both the same --token-file" in story.texts["wrong token"]


@as_root
def test_the_saved_file_and_the_output_of_all_hosts_come_back(story: Story) -> None:
    assert f"trained on {ROWS} rows" in story.output
    assert (story.folder / "code" / "saved" / "model.safetensors").stat().st_size > 100
    assert not list((story.folder / "code" / "saved").glob(".*"))
    names = {path.name for path in story.run.logs.glob("*.log")}
    assert names >= {"server-0.log", "server-1.log", "server-2.log", "worker-0.log"}
    assert any(f"trained on {ROWS} rows" in path.read_text() for path in story.run.logs.glob("worker-*.log"))


@as_root
def test_nothing_is_left(story: Story) -> None:
    assert [story.codes["a at the end"], story.codes["c at the end"]] == [0, 0], story.texts
    assert "the run has ended" in story.texts["a at the end"]
    assert [process for process in story.family if process.is_running()] == []
    assert list((story.folder / "cluster" / "cache" / "agents").glob("*")) == []
    prefix = network_module._own_prefix()
    assert [name for name in network_module._namespaces() if name.startswith(prefix)] == []


# ---------------------------------------------------------------- on this machine alone


def test_a_script_error_on_a_host_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    script = make_code(tmp_path / "code")
    token = tmp_path / "token"
    run([*PACELINE, "token", token], tmp_path).check()
    assert token.stat().st_mode & 0o777 == 0o600
    address = f"127.0.0.1:{free_port()}"
    agent = [*PACELINE, "agent", address, "--token-file", token, "--name", "a", "--cores", "2", "--dir", "cache"]
    options = ["--engine", "hosts", "--listen", address, "--token-file", token, "-w", "1", "--checkpoint-every", "0"]
    with background(agent, tmp_path) as offered:
        ended = run([*PACELINE, "run", "--dir", "run", *options, script, "--raises"], tmp_path)
        assert offered.wait(20.0).check().out.rstrip().endswith("the run has ended")
    assert ended.code == 1, ended.out
    last = ended.out[ended.out.rindex("Traceback") :]
    assert "RuntimeError: the dog ate my gradient" in last
    assert "host a joins: 2 cores at 127.0.0.1" in ended.out
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_agent_without_a_supervisor_waits_and_ends_by_a_signal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(new_token().hex())
    address = f"127.0.0.1:{free_port()}"
    command = [*PACELINE, "agent", address, "--token-file", token, "--name", "a", "--dir", "cache"]
    with background(command, tmp_path) as agent:
        until_it_handles(agent.process.pid)
        agent.process.send_signal(signal.SIGTERM)
        ended = agent.wait(20.0).check()
    assert f"waits for a supervisor at {address}" in ended.out
    assert "ended by a signal" in ended.out
    assert list((tmp_path / "cache").iterdir()) == []
