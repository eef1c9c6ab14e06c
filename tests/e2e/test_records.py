"""One run with all records on: a late worker and a stopped server are named, and what it leaves is read by others."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.kit.hurry import HURRY
from tests.kit.real_runs import PACELINE, Ended, live, run

SCRIPT = """
import time
from pathlib import Path
import torch, paceline
import torch.nn.functional as F
from torch.utils.data import TensorDataset

job = paceline.join(seed=7)
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)

@job.validate(TensorDataset(x[:64], y[:64]), every=5)
def check(model, x, y):
    return {"accuracy": (model(x).argmax(1) == y).float()}

def asleep_in_my_turn():
    while not Path("awake").exists():
        time.sleep(0.05)

for x, y in job.batches(TensorDataset(x, y), batch_size=16, slots=2, epochs=5):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    job.log(loss=loss)
    if job.step == 12:
        asleep_in_my_turn()
    if job.step >= 12 and not Path("hurry").exists():
        time.sleep(0.05)
    optimizer.step()
"""
pytestmark = pytest.mark.real_run


@dataclass(frozen=True)
class Recorded:
    dir: Path
    ended: Ended
    stalls: list[str]
    metrics: str

    def paceline(self, *words: object) -> str:
        return run([*PACELINE, *words], self.dir.parent).check().out


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    where = tmp_path_factory.mktemp("records")
    (where / "script.py").write_text(SCRIPT)
    options = ["-w", "2", "--tensorboard", "--metrics-port", "0", "--checkpoint-every", "10"]
    with live(where, options, where / "script.py") as running:
        stalls = [running.until(lambda status: "slot" in status.stall).stall]
        with urlopen(
            f"http://127.0.0.1:{(where / 'run' / 'metrics.port').read_text().strip()}/metrics", timeout=5
        ) as r:
            metrics = r.read().decode()
        log = where / "run" / "logs" / f"{stalls[0].partition(' on ')[2].partition(',')[0]}.log"
        running.until(lambda status: "in asleep_in_my_turn" in log.read_text())
        (where / "awake").touch()
        running.until_version(14)
        running.strike("coordinator")
        running.until(lambda status: status.generation == 2 and status.version >= 16)
        running.strike("server-0", signal.SIGSTOP)
        stalls.append(running.until(lambda status: "server-0" in status.stall).stall)
        running.strike("server-0", signal.SIGCONT)
        (where / HURRY).touch()
        ended = running.wait().check()
    return Recorded(where / "run", ended, stalls, metrics)


def test_a_late_worker_is_named_with_its_stack_and_a_stopped_server_too(recorded: Recorded) -> None:
    late, stopped = recorded.stalls
    found = re.fullmatch(r"step 12 waits for slot \d on (worker-\d), host \S+, for (\d+\.\d) s", late)
    assert found is not None, late
    assert 4.0 <= float(found[2]) < 10.0
    assert "server-0" in stopped
    stated = float(re.findall(r"for (\d+\.\d) s", stopped)[0])
    assert stated < 10.0
    assert "warning: no progress: step 12 waits for slot" in recorded.ended.out
    assert "in asleep_in_my_turn" in (recorded.dir / "logs" / f"{found[1]}.log").read_text()


def test_the_events_that_were_written_live_are_those_of_the_log(recorded: Recorded) -> None:
    content = (recorded.dir / "events.jsonl").read_bytes()
    recorded.paceline("log", "run", "--rebuild")
    assert (recorded.dir / "events.jsonl").read_bytes() == content
    lines = recorded.paceline("log", "run", "--kind", "validation", "--kind", "checkpoint").splitlines()
    assert sum("check: accuracy" in line for line in lines) == 8
    assert any(re.search(r"checkpoint +i0000-v0000000010 is complete", line) for line in lines)
    known: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
    assert {r["text"].split(" (")[0] for r in known if r["kind"] == "member"} >= {"server-0", "worker-0"}
    assert recorded.paceline("log", "run", "--csv", "m.csv").strip().endswith("m.csv: 48 rows")
    rows = (recorded.dir.parent / "m.csv").read_text().splitlines()
    assert rows[0] == "kind,incarnation,version,step,name,value"
    assert sum(row.startswith("logged,") for row in rows) == 40


def test_tensorboard_reads_the_scalars(recorded: Recorded) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(recorded.dir / "tb"), size_guidance={"scalars": 0})
    read.Reload()
    assert {"train/loss", "train/samples", "validation/accuracy"} <= set(read.Tags()["scalars"])
    assert [event.step for event in read.Scalars("train/loss")] == list(range(40))
    assert [event.step for event in read.Scalars("validation/accuracy")] == list(range(5, 41, 5))


def test_prometheus_reads_the_metrics_of_the_running_job(recorded: Recorded) -> None:
    assert re.search(r"^paceline_step 12\.0$", recorded.metrics, re.MULTILINE)
    assert re.search(r'^paceline_worker_slot_s\{worker="worker-1"\} ', recorded.metrics, re.MULTILINE)


def test_the_report_needs_no_network_and_runs_are_put_side_by_side(recorded: Recorded) -> None:
    page = (recorded.dir / "report.html").read_text()
    assert not re.search(r"https?://|src=|@import|url\(", page)
    assert page.count("<polyline") >= 2
    for word in ("the script&#x27;s loops are done", "accuracy by version", "loss by step", "worker-1", "Faults"):
        assert word in page, word
    shown = recorded.paceline("compare", "run", "run", "-o", "both.html")
    assert re.search(r"^steps +40 +40$", shown, re.MULTILINE)
    assert (recorded.dir.parent / "both.html").read_text().count("<polyline") >= 4
