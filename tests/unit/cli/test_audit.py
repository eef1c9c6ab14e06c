"""`paceline audit` and `paceline checkpoints`: what they print, and their exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.kit.real_runs import PACELINE, python, run
from tests.kit.story import Story, eventful
from tests.kit.told_runs import Done, alter, overwrite, paceline, told

from paceline.checkpoint.manifest import MARKER
from paceline.checkpoint.storage import LocalStorage
from paceline.coordinator.store import LogStore
from paceline.errors import StateError, UsageError
from paceline.runtime.rundir import RunDir

# ---------------------------------------------------------------- audit


def test_the_audit_of_a_clean_run_prints_its_counts_and_exits_with_0(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    done = paceline("audit", run.path)
    assert (done.code, done.lines) == (
        0,
        [
            "audit: clean: 26 steps of 74 slots and 200 samples; 4 incarnations, 5 commits computed again; "
            "3 segments of the plan",
            "applied exactly once: each sample of 6 epochs but the 3 samples that drop_last left out",
            "4 checkpoints agree with the log",
        ],
    )


def test_the_audit_of_an_incomplete_epoch_names_the_samples_so_far(tmp_path: Path) -> None:
    story = Story("bsp", slots=2)
    story.phase(data_len=20, batch=4, epochs=2)
    story.go(4)
    story.commits[1] = msgspec.structs.replace(story.commits[1], samples=4.0, empty=1)
    done = paceline("audit", told(story, tmp_path / "run").path)
    assert done.code == 0
    assert done.lines[1:] == [
        "applied exactly once: each sample of 1 epoch, the first 8 of epoch 1",
        "no checkpoint to compare the log with",
        "without a gradient, and so with weight 0: 1 slot",
    ]


def test_the_audit_of_a_damaged_run_lists_the_problems_and_exits_with_1(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    alter(run, "DELETE FROM commits WHERE incarnation = 1 AND version = 9", "UPDATE commits SET staleness = 3")
    done = paceline("audit", run.path, "--json", tmp_path / "report.json")
    assert done.code == 1
    assert done.lines[0].startswith("audit: NOT CLEAN: 25 steps of ")
    assert "- version-missing: version 9 of incarnation 1 is not in the log" in done.lines
    assert "- stale: and 5 more" in done.lines
    assert done.lines[-1] == "1 commit and 3 slots lost, 0 slots applied more than once"
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["ok"]
    assert (report["lost_commits"], report["lost_slots"], report["duplicate_slots"]) == (1, 3, 0)
    assert report["problems"][0] == "version-missing: version 9 of incarnation 1 is not in the log"
    assert report["where"][0] == {"kind": "version-missing", "incarnation": 1, "version": 9}
    assert report["omitted"]["stale"] == 5


def test_the_json_report_can_be_printed_to_standard_output(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    done = paceline("audit", run.path, "--json", "-")
    assert done.code == 0
    report = json.loads(done.text)
    assert report["ok"]
    assert (report["commits"], report["steps"], report["epochs"], report["left_out"]) == (27, 26, 6, 3)
    assert (report["checkpoints"], report["problems"]) == (4, [])


def test_a_checkpoint_whose_chain_differs_from_the_log_fails_the_audit(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    alter(run, "UPDATE commits SET variants = NULL")
    done = paceline("audit", run.path)
    assert done.code == 1
    assert "did not become version" in done.text


def test_a_checkpoint_that_cannot_be_compared_is_named(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    (Path(run.checkpoints) / "i0003-v0000000026" / MARKER).unlink()
    done = paceline("audit", run.path)
    assert done.code == 0
    assert done.lines[-2:] == [
        "3 checkpoints agree with the log",
        "not compared: i0003-v0000000026: incomplete: COMPLETE is missing",
    ]


def test_the_audit_of_a_run_without_commits_exits_with_0(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    LogStore(run.log_file).close()
    done = paceline("audit", run.path, "--json", tmp_path / "report.json")
    assert (done.code, done.lines) == (0, [f"audit: {run.path} has no commits yet: there is nothing to check"])
    assert json.loads((tmp_path / "report.json").read_text())["commits"] == 0


def test_a_run_of_another_version_is_refused(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    alter(run, "UPDATE meta SET value = '1' WHERE key = 'schema'")
    with pytest.raises(StateError, match=r"log.sqlite was written by Paceline .* \(schema 1\)"):
        paceline("audit", run.path)


def test_a_log_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    content = run.log_file.read_bytes()
    overwrite(run.log_file, 4096, len(content))
    with pytest.raises(StateError, match=r"the log .*log.sqlite is damaged: "):
        paceline("audit", run.path)
    run.log_file.write_bytes(content)
    alter(run, "UPDATE facts SET row = x'c1'")
    with pytest.raises(StateError, match=r"the log .*log.sqlite is damaged: "):
        paceline("audit", run.path)
    run.log_file.unlink()
    with pytest.raises(StateError, match=r"there is no log at .*log.sqlite"):
        paceline("audit", run.path)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["audit", "nothing"], "nothing is not a run directory"),
        (["audit", "."], "is not a run directory"),
        (["checkpoints", "nothing"], "nothing is not a run directory"),
    ],
)
def test_a_directory_that_is_no_run_is_refused(
    words: Sequence[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=named):
        paceline(*words)


def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        paceline("audit", run.path, "--json", tmp_path / "no" / "report.json")


def test_audit_and_checkpoints_do_not_import_torch(tmp_path: Path) -> None:
    path = told(eventful(), tmp_path / "run").path
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from paceline.cli.main import cli\n"
        "for name in ('audit', 'checkpoints'):\n"
        "    assert CliRunner().invoke(cli, [name, sys.argv[1]]).exit_code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    python("-c", code, path, cwd=tmp_path, timeout_s=30).check()


def test_the_audit_process_has_an_exit_code_for_each_outcome(tmp_path: Path) -> None:
    path = told(eventful(), tmp_path / "run").path
    run([*PACELINE, "audit", path], tmp_path, timeout_s=20).check(0)
    run([*PACELINE, "audit", tmp_path], tmp_path, timeout_s=20).check(2)
    alter(RunDir(path), "DELETE FROM commits WHERE version = 3")
    assert "version 3 of incarnation 0" in run([*PACELINE, "audit", path], tmp_path, timeout_s=20).check(1).out
    alter(RunDir(path), "DROP TABLE meta")
    assert "log.sqlite is not the log" in run([*PACELINE, "audit", path], tmp_path, timeout_s=20).check(3).out


# ---------------------------------------------------------------- checkpoints


def damage(run: RunDir, folder: str) -> None:
    path = Path(run.checkpoints) / folder / "server-0-0000.safetensors"
    path.write_bytes(b"x" + path.read_bytes()[1:])


def test_checkpoints_are_listed(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    done = paceline("checkpoints", run.path)
    assert done.code == 0
    assert [re.sub(r"\d+ s old", "N s old", line) for line in done.lines] == [
        f"{run.checkpoints}:",
        "i0000-v0000000004  step 4, epoch 0, 1.7 kB, N s old",
        "i0000-v0000000006  step 6, epoch 1, 1.7 kB, N s old",
        "i0001-v0000000015  step 15, epoch 3, 1.7 kB, N s old",
        "i0003-v0000000026  step 26, epoch 6, 1.7 kB, N s old",
    ]


def test_a_damaged_checkpoint_is_listed_with_the_one_to_use_instead(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    damage(run, "i0003-v0000000026")
    damage(run, "i0000-v0000000004")
    (Path(run.checkpoints) / "i0001-v0000000015" / MARKER).unlink()
    done = paceline("checkpoints", run.path)
    problem = "server-0-0000.safetensors is damaged: its SHA-256 is not the one in the manifest"
    assert done.code == 1
    assert done.lines[1] == f"i0000-v0000000004  {problem}"
    assert done.lines[3:] == [
        "i0001-v0000000015  incomplete: COMPLETE is missing; i0000-v0000000006 would be used instead",
        f"i0003-v0000000026  {problem}; i0000-v0000000006 would be used instead",
    ]
    quick = paceline("checkpoints", run.path, "--no-verify")
    assert quick.lines[1].startswith("i0000-v0000000004  step 4, epoch 0, 1.7 kB, ")
    assert "incomplete" in quick.lines[3]


def test_checkpoints_exits_with_1_if_one_is_damaged_but_not_if_one_was_never_completed(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    last = Path(run.checkpoints) / "i0003-v0000000026"
    marker = (last / MARKER).read_text()
    (last / MARKER).unlink()
    assert paceline("checkpoints", run.path).code == 0
    (last / MARKER).write_text(marker)
    (last / "manifest.json").unlink()
    assert paceline("checkpoints", run.path, "--no-verify").code == 1, "it was complete once"


def test_checkpoints_exits_with_1_if_no_checkpoint_is_complete(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    for folder in LocalStorage(Path(run.checkpoints)).folders():
        damage(run, folder)
    done = paceline("checkpoints", run.path)
    assert done.code == 1
    assert all("there is no older one to use instead" in line for line in done.lines[1:])
    empty = RunDir.create(tmp_path / "empty")
    assert paceline("checkpoints", empty.path) == Done(1, [f"{empty.checkpoints}: no checkpoints"])


def test_checkpoints_are_listed_as_json(tmp_path: Path) -> None:
    run = told(eventful(), tmp_path / "run")
    damage(run, "i0003-v0000000026")
    listed = json.loads(paceline("checkpoints", run.path, "--json").text)
    assert listed["where"] == run.checkpoints
    assert listed["verified"] is True
    *_, third, fourth = listed["checkpoints"]
    assert (third["version"], third["step"], third["epoch"], third["nbytes"]) == (15, 15, 3, 1700)
    assert third["problem"] is None
    assert (fourth["instead"], fourth["damaged"]) == ("i0001-v0000000015", True)
