"""`paceline run` from the outside: its output, its exit codes, and that it leaves no process or port behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
import pytest
from tests.kit.real_runs import FOREVER, PACELINE, SMALL, environment, live, run, run_apart
from tests.kit.timing import quickest

from paceline.coordinator.reader import LogReader


@pytest.mark.usefixtures("cold")
def test_a_run_prints_its_shape_and_writes_a_summary(tmp_path: Path) -> None:
    command = [*PACELINE, "run", "-w", "2", "--seed", "9", "--summary", "kept/here.json", SMALL, "--workers", "77"]
    done = run_apart(command, tmp_path).check()

    progress = done.err.splitlines()
    assert progress[0] == "bsp · 2 slots × 8 = batch 16 · 2 workers · seed 9 · runs/small-0001"
    assert progress[-1].startswith("step 8/8 · ")
    assert "warning" not in done.err
    results = [line for line in done.lines if not line.startswith("[worker-")]
    assert results[0].split() == ["steps", "8"], "the standard output has the results, and nothing else"
    assert results[-1].split() == ["run", "runs/small-0001"]
    summary = json.loads((tmp_path / "kept" / "here.json").read_text())
    assert summary == json.loads((tmp_path / "runs" / "small-0001" / "summary.json").read_text())
    expected = {
        "steps": 8, "samples": 128, "mode": "bsp", "slots": 2, "workers": 2, "servers": 1, "seed": 9,
        "max_staleness": 0, "skipped_slots": 0, "lost_workers": 0,
    }  # fmt: skip
    assert {key: summary[key] for key in expected} == expected
    assert summary["samples_per_s"] == pytest.approx(summary["samples"] / summary["seconds"])
    assert re.fullmatch(r"[0-9a-f]{64}", summary["digest"])
    assert set(summary["metrics"]) == {"loss", "error"}
    assert summary["digest"] in done.out, "the table shows the digest too"

    assert (tmp_path / "runs" / "latest").resolve() == tmp_path / "runs" / "small-0001"
    logs = tmp_path / "runs" / "small-0001" / "logs"
    assert {p.name for p in logs.iterdir()} == {
        "coordinator.log", "server-0.log", "worker-0.log", "worker-1.log",
    }  # fmt: skip
    said = re.findall(r"\[(worker-\d)\] SMALL (.*)", done.out)
    assert said, "one worker leads; another one leads once the first has left"
    about = json.loads(said[0][1])
    assert about["workers"] == 77, "options after the script go to the script"
    assert about["ranks"] == []
    assert about["threads"] == 1
    assert about["metrics"]["error"] == summary["metrics"]["error"]
    assert f"SMALL {said[0][1]}" in (logs / f"{said[0][0]}.log").read_text()

    again = run([*PACELINE, "run", "--dir", "runs/small-0001", SMALL], tmp_path, timeout_s=20).check(2)
    assert "runs/small-0001 holds a run already" in again.out
    assert "--dir" in again.out
    status = run([*PACELINE, "status"], tmp_path, timeout_s=20).check()
    assert "done after 8 steps" in status.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_status_shows_a_running_and_an_interrupted_run(number: signal.Signals, tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1", "--checkpoint-every", "0"], SMALL, *FOREVER) as running:
        running.until_version(3)
        status = run([*PACELINE, "status", "run"], tmp_path, timeout_s=20).check()
        assert "run: running" in status.out
        assert re.search(r"step \d+/\d+ · epoch \d+/\d+ · .* samples/s · loss .* · 1 worker", status.out)
        everything = json.loads(run([*PACELINE, "status", "run", "--json"], tmp_path, timeout_s=20).check().out)
        assert everything["workers"] == ["worker-0"]
        assert everything["servers"] == ["server-0"]

        roles = running.roles()
        assert sorted(roles) == ["coordinator", "server-0", "worker-0"]
        ports = _listening(roles.values())
        assert len(ports) >= 2
        assert all(host == "127.0.0.1" for host, _ in ports), "the roles listen on loopback only"
        began = time.monotonic()
        running.process.send_signal(number)
        ended = running.wait(10.0)
        assert time.monotonic() - began < 3.0
        assert ended.code == 128 + number, ended.out
        words = "interrupted" if number == signal.SIGINT else "terminated by SIGTERM"
        begins = f"`paceline run --resume {running.dir}` starts at step 0: no checkpoint was made, because "
        assert f"{words}: every process has ended; {begins}--checkpoint-every is 0" in ended.lines[-1]
        assert not any(process.is_running() for process in roles.values())
        assert not _ports_in_use() & ports
    gone = run([*PACELINE, "status", "run"], tmp_path, timeout_s=20).check(3)
    assert re.search(rf"run: {re.escape(words)} at step \d+ of \d+, \d+ s ago; no checkpoint\.\n", gone.out)
    assert begins in gone.out
    known = json.loads(run([*PACELINE, "status", "run", "--json"], tmp_path, timeout_s=20).check(3).out)
    assert (known["code"], known["checkpoint"]) == (128 + number, None)
    with LogReader(tmp_path / "run" / "log.sqlite") as reader:
        assert known["step"] == reader.watermark(), "the log says where the run ended, not the last status"


def test_much_output_of_a_script_before_its_loop_does_not_make_the_coordinator_look_hung(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "import time, paceline, torch\n"
        "job = paceline.join(seed=3)\n"
        "for number in range(100):\n"
        "    print('shard', number, flush=True)\n"
        "    time.sleep(0.07)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "job.prepare(model, optimizer)\n"
        "for (x,) in job.batches([(row,) for row in torch.randn(16, 4)], batch_size=8):\n"
        "    optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()\n"
    )
    ended = run([*PACELINE, "run", "-w", "1", "chatty.py"], tmp_path, PACELINE_TIMEOUT_S="10").check()
    assert "has not answered" not in ended.out, ended.out


@pytest.mark.usefixtures("cold")
def test_ctrl_c_while_roles_start_ends_the_run_within_3_seconds(tmp_path: Path) -> None:
    assert quickest(lambda: _interrupt_a_start(Path(mkdtemp(dir=tmp_path))), 3.0, tries=3) < 3.0


def _interrupt_a_start(cwd: Path) -> float:
    """The seconds from Ctrl-C, while the roles of a run start, to its end."""
    with live(cwd, ["-w", "1"], SMALL, *FOREVER) as running:
        deadline = time.monotonic() + 30.0
        while len(running.roles()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        roles = running.roles()
        began = time.monotonic()
        running.process.send_signal(signal.SIGINT)
        ended = running.wait(20.0)
        took_s = time.monotonic() - began
        assert ended.code == 130, ended.out
        assert not any(process.is_running() for process in roles.values())
    return took_s


@pytest.mark.usefixtures("cold")
def test_status_shows_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    prune = [*PACELINE, "runs", "--prune", "run", "--dir", "."]
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER) as running:
        running.until_version(1)
        assert "run is running: end it first" in run(prune, tmp_path, timeout_s=20).check(1).out
        assert "running" in run([*PACELINE, "runs", "."], tmp_path, timeout_s=20).check().out
        running.process.kill()
        running.process.wait()
    gone = run([*PACELINE, "status", "run"], tmp_path, timeout_s=20).check(3)
    assert re.search(
        r"run: the launcher was killed at step \d+; no checkpoint\.\n`paceline run --resume run`", gone.out
    )
    assert "run (unfinished, " in run(prune, tmp_path, timeout_s=20).check().out
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("cold")
def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER, "--loader-workers", "1") as running:
        running.until_version(1)
        roles = running.roles()
        ports = _listening(roles.values())
        loaders = roles["worker-0"].children()
        assert loaders
        running.process.kill()
        running.process.wait()
        _gone, alive = psutil.wait_procs([*roles.values(), *loaders], timeout=5.0)
        assert not alive
        assert not _ports_in_use() & ports


def test_an_exception_in_the_loop_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    command = [*PACELINE, "run", "--dir", "run", "-w", "2", SMALL, "--raise-at", "2"]
    ended = run_apart(command, tmp_path).check(1)
    assert ended.out == "", "an error is no result"
    *rest, last = ended.err.splitlines()
    error = "RuntimeError: the dog ate my gradient"
    assert re.fullmatch(
        rf"paceline: worker-\d failed: {error} \(fix the script or its data, then `paceline run --resume run "
        r"--allow-changes` continues at step 2; or start again; .*\)",
        last,
    )
    assert "run/logs" in last
    assert rest[-1] == error
    assert ended.err.count("Traceback (most recent call last)") == 1
    trace = ended.err[ended.err.rindex("Traceback (most recent call last)") :]
    assert f'File "{SMALL}"' in trace
    assert "runpy" not in trace, "the traceback has no frames of the runner"
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_script_that_exits_with_a_code_fails_the_run(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1"], SMALL, "--exit-at", "1") as running:
        ended = running.wait()
    assert ended.code == 1, ended.out
    assert "exit(3)" in "\n".join(ended.lines[-2:])


def test_a_script_that_never_joins_fails_the_run_with_the_remedy(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1"], SMALL, "--no-join") as running:
        ended = running.wait()
    assert ended.code == 1, ended.out
    assert "job = paceline.join()" in "\n".join(ended.lines[-2:])


def test_a_reader_that_closes_the_output_ends_the_run_as_ctrl_c_does(tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text(
        SMALL.read_text().replace("    optimizer.step()\n", "    optimizer.step()\n    print(job.step)\n")
    )
    with subprocess.Popen(
        [*PACELINE, "run", "--dir", "run", "-w", "1", script, *FOREVER],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "[worker-0] 2\n":
            assert process.poll() is None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141, said
    assert "Traceback" not in said
    begins = r"`paceline run --resume run` continues at step [1-9]\d*"
    closed = "warning: the reader of the output has closed it: every process has ended"
    assert re.fullmatch(rf"{closed}; {begins}", said.splitlines()[-1]), said


Ports = set[tuple[str, int]]


def _listening(processes: Iterable[psutil.Process]) -> Ports:
    return _listeners(c for process in processes for c in process.net_connections(kind="inet"))


def _ports_in_use() -> Ports:
    return _listeners(psutil.net_connections(kind="inet"))


def _listeners(connections: Iterable[Any]) -> Ports:
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}
