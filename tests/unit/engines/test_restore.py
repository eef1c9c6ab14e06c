"""A run takes its place of checkpoints, and a machine that never saw the run makes its directory from there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.checkpoint_files import complete, outcome
from tests.kit.log_rows import commit, write
from tests.kit.sheet import Sheet

from paceline.checkpoint.storage import LocalStorage
from paceline.checkpoint.terms import Term, newest_term
from paceline.coordinator.checkpoint_completion import CheckpointCompletion, HeldPlace
from paceline.coordinator.reader import LogReader
from paceline.coordinator.store import LogStore
from paceline.engines.place import checkpoints_note, claim_place, is_place, plan_files, put_files
from paceline.engines.plan import RunPlan
from paceline.engines.restore import restore_run
from paceline.engines.resume import check_code, resumed
from paceline.errors import DeposedError, StateError, UsageError
from paceline.runtime.rundir import RunDir
from paceline.types import INIT_STEP


def new_plan(root: Path, **more: object) -> RunPlan:
    code = root / "code"
    code.mkdir(parents=True, exist_ok=True)
    (code / "train.py").write_text("import lib\n")
    (code / "lib.py").write_text("x = 1\n")
    options: dict[str, object] = {"cwd": code, "checkpoints": str(root / "ckpt"), "seed": 7} | more
    return RunPlan(script=code / "train.py", run=root / "run", **options)  # type: ignore[arg-type]


def begun(plan: RunPlan, versions: int = 3) -> RunPlan:
    """Play a run that takes its place and makes one checkpoint."""
    plan = claim_place(check_code(plan, Sheet(), allow_changes=False), Sheet())
    run = RunDir.create(plan.run)
    plan.save()
    log = LogStore(run.log_file)
    write(log, commit(0, INIT_STEP), *[commit(version) for version in range(1, versions + 1)])
    storage = LocalStorage(Path(plan.checkpoints or ""))
    kept = {key: value for key, value in run.plan().items() if key not in ("term", "term_key")}
    place = HeldPlace(Term(plan.term, plan.term_key), lambda: kept)
    keeper = CheckpointCompletion(storage, log.path, log.generation, place)
    keeper.complete(complete(storage, versions, term=plan.term))
    assert outcome(keeper)[1] == ""
    log.close()
    return plan


def test_a_new_run_takes_the_first_term_and_puts_its_files_there(tmp_path: Path) -> None:
    plan = claim_place(new_plan(tmp_path), Sheet())
    assert plan.term == 1
    assert sorted(path.name for path in (tmp_path / "ckpt/files").iterdir()) == [
        f"{plan.files}.contents",
        f"{plan.files}.json",
    ]
    listed = json.loads((tmp_path / "ckpt/files" / f"{plan.files}.json").read_text())
    assert [entry[0] for entry in listed["entries"]] == ["lib.py", "train.py"]
    again = claim_place(replace(new_plan(tmp_path), run=tmp_path / "run2"), Sheet())
    assert (again.term, again.files) == (2, plan.files), "without a checkpoint there is nothing to lose"


def test_without_a_place_nothing_is_taken_and_several_hosts_are_told(tmp_path: Path) -> None:
    plan = new_plan(tmp_path, checkpoints=None)
    assert claim_place(plan, Sheet()) == plan
    assert "--checkpoints URL" in checkpoints_note(plan)
    assert checkpoints_note(new_plan(tmp_path)) == ""


def test_a_new_run_does_not_take_the_place_of_another_one(tmp_path: Path) -> None:
    begun(new_plan(tmp_path))
    with pytest.raises(UsageError, match="checkpoints of another run"):
        claim_place(replace(new_plan(tmp_path), run=tmp_path / "run2"), Sheet())


def test_files_that_are_too_large_are_a_warning(tmp_path: Path) -> None:
    plan = new_plan(tmp_path, files_limit=1)
    (tmp_path / "code/large.bin").write_bytes(bytes(2 << 20))
    screen = Sheet()
    plan = claim_place(plan, screen)
    assert (plan.term, plan.files) == (1, "")
    assert "will not have your files" in screen.notes[0]
    assert "large.bin" in screen.notes[0]


def test_a_machine_that_never_saw_the_run_has_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = begun(new_plan(tmp_path))
    (tmp_path / "run").rename(tmp_path / "gone")
    (tmp_path / "code").rename(tmp_path / "lost")
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    place = str(tmp_path / "ckpt")
    assert is_place(place)
    run = restore_run(place, None, {})
    assert run == Path("runs/train-0001")
    plan = check_code(resumed(run, {"workers": 3}), Sheet(), allow_changes=False)
    assert (plan.term, plan.workers, plan.seed, plan.files) == (2, 3, 7, before.files)
    assert plan.script == there / "runs/train-0001/code/train.py"
    assert plan.cwd == there / "runs/train-0001/code"
    assert (plan.script.parent / "lib.py").read_text() == "x = 1\n"
    (plan.script.parent / "output.bin").write_bytes(b"made by the script")
    assert put_files(plan, Sheet()).files == plan_files(plan).digest == before.files
    (plan.script.parent / "lib.py").write_text("x = 2\n")
    assert put_files(plan, Sheet()).files != before.files, "the checkpoints have the code that runs"
    assert RunDir(run).token() != RunDir(tmp_path / "gone").token()
    with LogReader(RunDir(run).log_file) as reader:
        assert [c.version for c in reader.commits()] == [0, 1, 2, 3]
    with pytest.raises(DeposedError, match="term 2; this run has term 1"):
        claim_place(replace(before, resume="", script=tmp_path / "lost/train.py"), Sheet())
    newest = newest_term(LocalStorage(tmp_path / "ckpt"))
    assert newest is not None
    assert newest.number == 2
    assert newest.holder.endswith("there/runs/train-0001")


def test_a_resume_by_the_run_directory_takes_the_next_term(tmp_path: Path) -> None:
    plan = begun(new_plan(tmp_path))
    again = claim_place(replace(RunPlan.of(tmp_path / "run"), resume=""), Sheet())
    assert (again.term, again.files) == (2, plan.files)
    assert again.term_key != plan.term_key


def test_a_resume_that_was_killed_before_it_took_its_term_is_not_deposed(tmp_path: Path) -> None:
    begun(new_plan(tmp_path))
    run = RunDir(tmp_path / "run")
    run.write_plan({**run.plan(), "term": 2, "term_key": "noted"})
    assert claim_place(replace(RunPlan.of(run.path), resume=""), Sheet()).term == 2
    claim_place(replace(RunPlan.of(run.path), resume=""), Sheet())
    assert run.plan()["term"] == 3, "a term is noted before anything else can fail"
    run.write_plan({**run.plan(), "term_key": "another"})
    with pytest.raises(DeposedError):
        claim_place(replace(RunPlan.of(run.path), resume=""), Sheet())


def test_a_run_of_an_earlier_version_takes_its_place_when_it_is_resumed(tmp_path: Path) -> None:
    plan = new_plan(tmp_path)
    run = RunDir.create(plan.run)
    plan.save()
    old = {key: value for key, value in run.plan().items() if key not in ("term", "term_key", "files", "files_limit")}
    run.write_plan(old)
    storage = LocalStorage(tmp_path / "ckpt")
    keeper = CheckpointCompletion(storage, None, 1)
    keeper.complete(complete(storage, 3))
    assert outcome(keeper)[1] == ""
    claimed = claim_place(replace(RunPlan.of(run.path), resume=""), Sheet())
    assert claimed.term == 1
    assert claimed.files


def test_a_module_is_found_below_the_unpacked_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = new_plan(tmp_path)
    package = tmp_path / "code/pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "go.py").write_text("import lib\n")
    begun(replace(plan, script=package / "go.py", module="pkg.go"))
    (tmp_path / "code").rename(tmp_path / "lost")
    monkeypatch.chdir(tmp_path)
    run = restore_run(str(tmp_path / "ckpt"), None, {})
    restored = check_code(resumed(run, {}), Sheet(), allow_changes=False)
    assert run.name == "go-0001"
    assert restored.script == tmp_path / run / "code/pkg/go.py"
    assert restored.code_root == tmp_path / run / "code"


def test_a_script_that_the_user_gives_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(new_plan(tmp_path))
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text("import lib\n")
    (mine / "lib.py").write_text("x = 2\n")
    given = {"script": mine / "train.py", "module": ""}
    run = restore_run(str(tmp_path / "ckpt"), tmp_path / "new", given)
    assert not (run / "code").exists()
    plan = resumed(run, given)
    assert plan.script == mine / "train.py"
    with pytest.raises(UsageError, match=r"lib\.py has changed"):
        check_code(plan, Sheet(), allow_changes=False)
    changed = put_files(check_code(plan, Sheet(), allow_changes=True), Sheet())
    assert changed.files != RunPlan.of(tmp_path / "run").files


def test_what_cannot_be_resumed_is_refused_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = str(tmp_path / "ckpt")
    claim_place(new_plan(tmp_path), Sheet())
    with pytest.raises(UsageError, match="no complete checkpoint"):
        restore_run(place, None, {})
    begun(replace(new_plan(tmp_path), run=tmp_path / "run2"))
    with pytest.raises(UsageError, match="--seed 8"):
        restore_run(place, None, {"seed": 8})
    assert newest_term(LocalStorage(tmp_path / "ckpt")).number == 2  # type: ignore[union-attr]
    part = next((tmp_path / "ckpt/log").iterdir())
    content = part.read_bytes()
    part.unlink()
    for target in (None, tmp_path / "empty"):
        with pytest.raises(StateError, match="cannot be read"):
            restore_run(place, target, {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/keep.txt").write_text("x")
    with pytest.raises(StateError, match="cannot be read"):
        restore_run(place, tmp_path / "mine", {})
    assert (tmp_path / "mine/keep.txt").exists()
    assert not (tmp_path / "mine/token").exists()
    assert list((tmp_path / "runs").iterdir()) == []
    part.write_bytes(content)
    assert RunDir(restore_run(place, tmp_path / "empty", {})).log_file.exists()


def test_checkpoints_of_an_older_version_need_their_run_directory(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    keeper = CheckpointCompletion(storage, None, 1)
    keeper.complete(complete(storage, 1))
    outcome(keeper)
    with pytest.raises(UsageError, match="Resume the run by its directory"):
        restore_run(str(tmp_path / "ckpt"), None, {})
    assert not is_place(str(tmp_path / "ckpt"))
    assert is_place("s3://bucket/run")


def test_a_restored_run_has_the_token_that_its_agents_have(tmp_path: Path) -> None:
    plan = begun(new_plan(tmp_path))
    token = tmp_path / "token"
    token.write_text("ab" * 32 + "\n")
    path = restore_run(plan.checkpoints or "", tmp_path / "new", {"token_file": token})
    assert RunDir(path).token() == bytes.fromhex("ab" * 32)
