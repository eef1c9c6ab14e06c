"""A run changes its method while it runs: by hand, by its script, and by a schedule, and loses nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tests.kit.checked_runs import summary_of
from tests.kit.real_runs import PACELINE, TRAIN_CASE, Live, live, python, run

ENDLESS = """
import time
from pathlib import Path
import torch, paceline
job = paceline.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.prepare(model, optimizer)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = list(zip(x, x.sum(1, keepdim=True), strict=True))
for x, y in job.batches(data, 4, epochs=100000):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    job.log(loss=loss)
    time.sleep(0.004)
    if Path("enough").exists():
        job.stop("enough")
    optimizer.step()
"""

SETTING = """
import sys
import torch, paceline
job = paceline.join(seed=3)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
x = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
data = list(zip(x, x.sum(1, keepdim=True), strict=True))
for x, y in job.batches(data, 4, slots=2, epochs=2, shuffle=False):
    if job.step == 3:
        assert job.set(slots=3, lr="x0.5") == 5
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
try:
    job.set(slots=0)
except paceline.errors.UsageError as error:
    print(error)
print("FINAL", paceline.digest(model), [p.tolist() for p in model.parameters()], job.step, job.epoch)
"""


def paceline_set(running: Live, *words: str, code: int = 0) -> str:
    return run([*PACELINE, "set", running.dir, *words], running.dir.parent).check(code).out


def first_step(text: str) -> int:
    found = re.search(r"from step (\d+): ", text)
    assert found, text
    return int(found[1])


MEMBERS = ["-w", "2", "-s", "2", "--replicas", "1", "--checkpoint-every", "20", "--insecure-collective"]


def test_a_run_goes_through_all_four_methods_and_back_while_processes_are_killed(tmp_path: Path) -> None:
    """The schedule makes the first changes, `paceline set` the others. The blocks move to the workers and back."""
    (tmp_path / "script.py").write_text(ENDLESS)
    modes = ["--mode", "bsp@10,ssp:2@30,asp@50,allreduce"]
    with live(tmp_path, [*MEMBERS, *modes], tmp_path / "script.py") as running:
        status = running.until(lambda status: status.reducer == "collective" and (status.step or 0) > 60)
        assert status.mode == "allreduce"
        assert (
            "blocks are on the workers, which sum as a group" in run([*PACELINE, "status", "run"], tmp_path).check().out
        )
        running.strike("worker-1")
        running.until_version(status.version + 5)
        back = first_step(paceline_set(running, "mode=bsp", "slots=3", "lr=x0.5"))
        status = running.until(lambda status: status.reducer == "servers" and (status.step or 0) > back + 5)
        assert (status.mode, status.slots) == ("bsp", 3)
        assert {speed.name for speed in status.speeds} <= {"worker-0", "worker-1"}
        running.strike("server-0")
        again = first_step(paceline_set(running, "mode=allreduce"))
        running.until(lambda status: status.reducer == "collective" and (status.step or 0) > again + 5)
        last = first_step(paceline_set(running, "mode=asp"))
        running.until(lambda status: status.reducer == "servers" and (status.step or 0) > last + 5)
        assert "slots= does not fit asp" in paceline_set(running, "slots=4", code=2)
        assert "mode asp, as before" in paceline_set(running, "mode=asp")
        (tmp_path / "enough").touch()
        running.wait().check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 60 < back < again < last < summary["steps"]
    assert [line.split(" (")[0] for line in summary["plan"]] == [
        "from step 0: bsp, 2 slots",
        "from step 10: ssp:2, 1 slot",
        "from step 30: asp, 1 slot",
        "from step 50: allreduce, 2 slots",
        f"from step {back}: bsp, 3 slots, lr x0.5",
        f"from step {again}: allreduce, 2 slots, lr x0.5",
        f"from step {last}: asp, 1 slot, lr x0.5",
    ]
    assert (summary["rewinds"], summary["servers"]) == (0, 2)
    audit = json.loads(run([*PACELINE, "audit", "run", "--json", "-"], tmp_path).check().out)
    assert audit["segments"] == 7
    assert "ended" in run([*PACELINE, "set", "run", "mode=asp"], tmp_path).check(2).out


def by_hand() -> list[list[float]]:
    """The weights that the script must get: 2 slots and the whole rate up to step 5, then 3 slots and half of it."""
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 1)
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    cuts = [(0.1, 8 * i, 8 * i + 8) for i in range(5)] + [(0.05, 40, 48)]
    cuts += [(0.05, 12 * i, 12 * i + 12) for i in range(4)]
    for rate, start, stop in cuts:
        loss = (model(x[start:stop]) - y[start:stop]).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(rate * parameter.grad)
    return [parameter.tolist() for parameter in model.parameters()]


def test_a_script_that_sets_dials_in_lock_step_gives_the_same_bits_in_every_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SETTING)
    alone = python("script.py", cwd=tmp_path).check()
    many = run([*PACELINE, "run", "-w", "3", "-s", "2", "script.py"], tmp_path).check()
    found = re.findall(r"FINAL (\w+) (\[.*\]) (\d+) (\d+)$", alone.out + many.out, re.MULTILINE)
    assert len(found) == 4, alone.out + many.out
    assert len({digest for digest, *_ in found}) == 1
    assert {(step, epoch) for *_, step, epoch in found} == {("10", "1")}
    weights = json.loads(found[0][1])
    for mine, expected in zip(weights, by_hand(), strict=True):
        assert torch.allclose(torch.tensor(mine), torch.tensor(expected), atol=1e-6)
    assert "slots must be a whole number, at least 1, not '0'" in alone.out


@pytest.mark.parametrize("case", ["norm", "adamw"])
def test_with_ordered_slots_a_run_that_moves_trains_as_one_plain_process(case: str, tmp_path: Path) -> None:
    """Weights, buffers of every kind and the state of the optimizer move, bit by bit."""
    options = ["-w", "3", "-s", "2", "--insecure-collective", "--ordered", "--seed", "7"]
    modes = ["--mode", "bsp@4,allreduce@8,bsp"]
    summary = summary_of(
        run([*PACELINE, "run", "--dir", "run", *options, *modes, TRAIN_CASE, case], tmp_path), tmp_path, case
    )
    assert [line.split(",")[0] for line in summary["plan"]] == [
        "from step 0: bsp",
        "from step 4: allreduce",
        "from step 8: bsp",
    ]
    run([*PACELINE, "audit", "run"], tmp_path).check()


@pytest.mark.parametrize("mode", ["bsp@4,ssp:2@9,asp@12,bsp"])
def test_a_schedule_in_the_command_changes_the_mode_by_itself(tmp_path: Path, mode: str) -> None:
    (tmp_path / "script.py").write_text(ENDLESS.replace("epochs=100000", "epochs=2"))
    run([*PACELINE, "run", "--dir", "run", "-w", "2", "--mode", mode, "--slots", "2", "script.py"], tmp_path).check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [line.split(",")[0] for line in summary["plan"]] == [
        "from step 0: bsp",
        "from step 4: ssp:2",
        "from step 9: asp",
        "from step 12: bsp",
    ]
    assert summary["samples"] == 128
    run([*PACELINE, "audit", "run"], tmp_path).check()
    wrong = run([*PACELINE, "run", "--mode", "bsp@5,allreduce", "script.py"], tmp_path).check(2)
    assert "Add --insecure-collective" in wrong.out
