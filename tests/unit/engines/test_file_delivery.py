"""The files of a run go to each host that lacks them; a host that refuses them is named once."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from paceline.core.files.receiver import FileReceiver, Unpack
from paceline.engines.bundle.store import Store
from paceline.engines.bundle.unpack import unpack
from paceline.engines.file_delivery import FileDelivery
from paceline.engines.plan import RunPlan
from paceline.errors import UsageError
from paceline.messages.base import Message
from paceline.runtime.rundir import RunDir


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    code = tmp_path / "code"
    (code / "run").mkdir(parents=True)
    (code / "train.py").write_text("import own")
    (code / "own.py").write_text("x = 1")
    (code / "rows.csv").write_text("1,2")
    return RunPlan(script=code / "train.py", run=code / "run")


def delivered(delivery: FileDelivery, host: str, folder: Path, problem: str = "") -> int:
    """Bring the files to a host; returns how many messages that took. With `problem`, the host cannot unpack them."""
    store = Store(folder / "store")
    receiver = FileReceiver(store)
    going: deque[Message] = deque(delivery.begin(host))
    number = 0
    while going:
        answers: deque[Message | Unpack] = deque(receiver.handle(going.popleft()))
        number += 1
        while answers:
            answer = answers.popleft()
            if isinstance(answer, Unpack):
                if not problem:
                    unpack(answer.manifest, store, folder / "files")
                answers.extend(receiver.unpacked(answer.req, problem))
            else:
                going.extend(delivery.handle(host, answer))
    return number


def test_a_host_gets_the_scripts_directory_without_the_run(plan: RunPlan, tmp_path: Path) -> None:
    delivery = FileDelivery(plan, RunDir(plan.run))
    assert not delivery.has("a")
    delivered(delivery, "a", tmp_path / "a")
    assert delivery.has("a")
    assert not delivery.has("b")
    assert delivery.problem("a") == ""
    found = {path.name for path in (tmp_path / "a" / "files").rglob("*") if path.is_file()}
    assert found == {"train.py", "own.py", "rows.csv"}


def test_a_host_that_has_the_files_gets_only_the_offer(plan: RunPlan, tmp_path: Path) -> None:
    delivery = FileDelivery(plan, RunDir(plan.run))
    assert delivered(delivery, "a", tmp_path / "a") > 1
    delivery.forget("a")
    assert not delivery.has("a")
    assert delivered(delivery, "a", tmp_path / "a") == 1
    assert delivery.has("a")


def test_why_a_host_cannot_take_the_files_is_told_once(plan: RunPlan, tmp_path: Path) -> None:
    delivery = FileDelivery(plan, RunDir(plan.run))
    delivered(delivery, "a", tmp_path / "a", problem="its disk is full")
    assert not delivery.has("a")
    assert "its disk is full" in delivery.problem("a")
    assert delivery.problem("a") == ""


def test_messages_of_unknown_hosts_are_ignored(plan: RunPlan) -> None:
    delivery = FileDelivery(plan, RunDir(plan.run))
    (offer,) = delivery.begin("a")
    assert delivery.handle("b", offer) == []
    assert delivery.problem("b") == ""


def test_files_that_are_too_large_are_refused_with_the_option(plan: RunPlan) -> None:
    (plan.code_root / "large.bin").write_bytes(bytes(2 << 20))
    small = RunPlan(script=plan.script, run=plan.run, files_limit=1)
    with pytest.raises(UsageError, match="--files-limit"):
        FileDelivery(small, RunDir(plan.run))
