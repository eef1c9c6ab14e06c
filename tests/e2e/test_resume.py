"""`paceline run --resume`: runs whose processes were all killed continue from their last complete checkpoint."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from tests.kit.checked_runs import summary_of
from tests.kit.real_runs import (
    FOREVER,
    PACELINE,
    SMALL,
    TRAIN_CASE,
    Ended,
    Live,
    default_sigint,
    environment,
    live,
    run,
)
from tests.kit.told_runs import content_of, overwrite

from paceline.checkpoint.manifest import folder_name
from paceline.engines.fingerprint import fingerprint
from paceline.runtime.rundir import RunDir

SLOW = json.dumps(
    {f"worker-{i}": 0.3 for i in range(8)}
)  # long enough that a busy machine can kill the run before it ends
STARTED = ["-w", "2", "-s", "2", "--seed", "7", "--checkpoint-every", "2"]


def cut_off(running: Live, *, checkpoints: int) -> list[Path]:
    """Kill every process at once when this many checkpoints are complete; the resumed run does not sleep."""
    running.until(lambda status: len(complete(running.dir)) >= checkpoints and status.version >= 5)
    running.process.send_signal(signal.SIGSTOP)  # a stopped launcher restarts no role
    kill_all(running)
    running.hurry()
    return complete(running.dir)


def kill_all(running: Live) -> None:
    roles = running.roles()
    for process in roles.values():
        process.kill()
    running.process.kill()
    running.process.wait()
    _, alive = psutil.wait_procs(list(roles.values()), timeout=5.0)
    assert not alive


def complete(where: Path) -> list[Path]:
    return sorted(marker.parent for marker in (where / "checkpoints").glob("*/COMPLETE"))


def resume(cwd: Path, *options: str) -> Ended:
    return run([*PACELINE, "run", "--resume", "run", *options], cwd)


def test_a_killed_run_resumes_with_another_shape(tmp_path: Path) -> None:
    """In the middle of an epoch, with a scheduler that is stepped after each epoch."""
    with live(tmp_path, STARTED, TRAIN_CASE, "epochs", "--sleep", SLOW) as running:
        kept = cut_off(running, checkpoints=1)
    ended = resume(tmp_path, "-w", "3", "-s", "1")
    summary = summary_of(ended, tmp_path, "epochs")
    assert summary["steps"] == 12
    assert (summary["workers"], summary["servers"]) == (3, 1)
    assert f"resuming from checkpoint {kept[-1].name}" in ended.out
    assert (summary["incarnation"], summary["rewinds"]) == (1, 0)
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (plan["workers"], plan["servers"], plan["checkpoint_every"]) == (3, 1, "2")


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path: Path) -> None:
    with live(tmp_path, STARTED, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        kept = cut_off(running, checkpoints=2)
    shard = next(iter(sorted(kept[-1].glob("*.safetensors"))))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    incomplete = kept[-1].with_name(folder_name(0, 99))
    incomplete.mkdir()
    ended = resume(tmp_path)
    assert summary_of(ended, tmp_path)["steps"] == 12
    assert f"warning: checkpoint {incomplete.name} cannot be used: incomplete: COMPLETE is missing" in ended.out
    assert ended.out.count(incomplete.name) == 1, "the damaged checkpoint is named once"
    assert f"warning: checkpoint {kept[-1].name} cannot be used: {shard.name} is damaged" in ended.out
    assert f"resuming from checkpoint {kept[-2].name}" in ended.out


def test_an_interrupted_run_resumes_at_the_step_that_its_last_line_names(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "-s", "2", "--seed", "7"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(4)
        running.process.send_signal(signal.SIGINT)
        ended = running.wait(15.0)
        assert ended.code == 130
        running.hurry()
    hint = re.search(r"interrupted: .*; `paceline run --resume \S+` continues at step (\d+)$", ended.lines[-1])
    assert hint is not None, ended.out
    assert "interrupted: waits up to 5 s for a checkpoint; another such signal ends the run at once" in ended.out
    step = int(hint[1])
    assert step >= 4
    ended = resume(tmp_path)
    assert f"version {step}, step {step}" in ended.out
    assert summary_of(ended, tmp_path)["steps"] == 12


def test_a_run_without_a_checkpoint_resumes_from_nothing(tmp_path: Path) -> None:
    options = ["-w", "1", "--seed", "7", "--checkpoint-every", "0"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(3)
        still = run([*PACELINE, "run", "--resume", "run"], tmp_path, timeout_s=20).check(2)
        assert "run is running: end it first" in still.lines[-1]
        running.process.send_signal(signal.SIGINT)
        assert running.wait(10.0).code == 130
        running.hurry()
    ended = resume(tmp_path)
    assert summary_of(ended, tmp_path)["steps"] == 12
    assert "there is no complete checkpoint: the run starts from the beginning" in ended.out


def test_a_resumed_run_has_the_last_requested_size_even_if_its_launcher_never_applied_it(tmp_path: Path) -> None:
    options = ["-w", "1", "-s", "1", "--checkpoint-every", "0"]
    with live(tmp_path, options, SMALL, "--epochs", "1000", "--sleep", "0.02") as running:
        running.until_version(1)
        running.process.send_signal(signal.SIGSTOP)
        run([*PACELINE, "scale", "run", "-w", "2"], tmp_path, timeout_s=20).check()
        run([*PACELINE, "scale", "run", "-s", "3"], tmp_path, timeout_s=20).check()
        kill_all(running)
    ended = resume(tmp_path, "-s", "2", "--max-steps", "5").check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["workers"], summary["servers"]) == (2, 2), "the command line overrides the requested size"
    assert "wanted instead of" not in ended.out, "the roles start with the run"


def test_a_finished_run_that_is_resumed_and_interrupted_keeps_its_summary(tmp_path: Path) -> None:
    run([*PACELINE, "run", "-w", "1", "--checkpoint-every", "2", SMALL], tmp_path).check()
    where = RunDir(tmp_path / "runs" / "small-0001")
    summary = where.summary_file.read_text()
    with subprocess.Popen(
        [*PACELINE, "run", "--resume", "runs/latest"], cwd=tmp_path, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=default_sigint,
    ) as again:  # fmt: skip
        deadline = time.monotonic() + 60.0
        while where.end() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        again.send_signal(signal.SIGINT)
        assert again.wait(20.0) == 130
    assert where.summary_file.read_text() == summary
    gone = run([*PACELINE, "status"], tmp_path, timeout_s=20).check(3)
    assert gone.out.startswith("runs/small-0001: interrupted at step 8")
    assert "summary.json is from when the run was done before" in gone.out
    (tmp_path / "small.py").write_text(f"{SMALL.read_text()}\n# changed\n")
    refused = run([*PACELINE, "run", "--resume", "runs/latest", "small.py"], tmp_path, timeout_s=20).check(2)
    assert "the code of runs/small-0001 is not that with which the run began: small.py has changed." in refused.out
    ended = run([*PACELINE, "run", "--resume", "runs/latest", "--allow-changes", "small.py"], tmp_path).check()
    assert "small.py has changed: the result of this run is no longer that of one script" in ended.out
    assert where.plan()["fingerprint"] == fingerprint(tmp_path / "small.py", tmp_path)
    assert "resuming from checkpoint i0000-v0000000008: version 8, step 8" in ended.out
    assert json.loads(where.summary_file.read_text())["digest"] == json.loads(summary)["digest"]
    assert (tmp_path / "runs" / "latest").resolve() == where.path, "the link never points to itself"
    done = run([*PACELINE, "status"], tmp_path, timeout_s=20).check()
    assert done.out.startswith("runs/small-0001: done after 8 steps")


def test_a_log_that_breaks_while_the_run_goes_on_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1", "--checkpoint-every", "0"], SMALL, *FOREVER) as running:
        running.until_version(3)
        for name in ("log.sqlite-shm", "log.sqlite-wal", "log.sqlite"):
            overwrite(running.dir / name, 0, 1 << 30)
        ended = running.wait(60.0).check(3)
    assert "Traceback" not in ended.out
    last = ended.lines[-1]
    assert re.search(
        r"paceline: (cannot write to )?the log .*/log\.sqlite(: | is damaged: ).*the run needs its log", last
    )
    before = content_of(running.dir)
    refused = resume(tmp_path).check(3)
    assert "run cannot be resumed: the log run/log.sqlite is damaged" in refused.out
    assert "Traceback" not in refused.out
    assert content_of(running.dir) == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--threads", "2"], "--threads 2: run has 1, and that is part of its result"),
        (["--seed", "8"], "--seed 8: run has 7"),
        (["--mode", "asp"], "--mode asp: run has bsp"),
        (["--slots", "3"], "--slots 3: run leaves it to its script"),
        (["--checkpoints", "elsewhere"], "--checkpoints elsewhere: the checkpoints of run are in"),
        (["--dir", "other"], "--dir other: a resumed run stays in its own directory"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["gone.py"], "gone.py is not a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_resume_refuses_options_that_change_the_result(options: Sequence[str], named: str, tmp_path: Path) -> None:
    made = RunDir.create(tmp_path / "run")
    made.write_plan({"script": str(SMALL), "threads": 1, "seed": 7, "mode": "bsp", "slots": None})
    made.announce("tcp://127.0.0.1:9", 1)
    done = run([*PACELINE, "run", "--resume", "run", *options], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert "Traceback" not in done.out


def test_resume_refuses_a_directory_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run([*PACELINE, "run", "--resume", "empty"], tmp_path, timeout_s=20).check(2)
    assert "empty is not a run directory" in done.lines[-1]
    RunDir.create(tmp_path / "embedded")
    done = run([*PACELINE, "run", "--resume", "embedded"], tmp_path, timeout_s=20).check(2)
    assert "embedded was not started by `paceline run`" in done.lines[-1]


LOOPS = """
import torch
import paceline

job = paceline.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
for loop in range(3):
    for (x,) in job.batches(data, 8, slots=2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if loop < 2:
        job.save("best.safetensors")
    if job.lead:
        print(f"LOOP {loop}: step {job.step} epoch {job.epoch}")
job.stop("enough")
"""


def test_a_stopped_run_that_is_resumed_passes_its_loops_as_they_were_and_names_a_missing_save(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS)
    first = run([*PACELINE, "run", "--dir", "run", "-w", "1", "loops.py"], tmp_path).check()
    loops = re.findall(r"LOOP .*", first.out)
    assert loops == [f"LOOP {n}: step {2 * n + 2} epoch {n}" for n in range(3)]
    assert "best.safetensors" not in first.out
    again = resume(tmp_path).check()
    assert re.findall(r"LOOP .*", again.out) == loops
    assert "best.safetensors" not in again.out, "the file is as the run left it"
    (tmp_path / "best.safetensors").rename(tmp_path / "moved.safetensors")
    again = resume(tmp_path).check()
    assert "warning: best.safetensors is missing. job.save('best.safetensors') was done before" in again.out
