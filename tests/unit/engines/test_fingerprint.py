"""The fingerprint of a run's code: which files it covers, and what a changed file does to a resume."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.kit.sheet import Sheet
from tests.kit.told_runs import paceline

from paceline.engines.fingerprint import differences, fingerprint
from paceline.engines.plan import RunPlan
from paceline.engines.resume import check_code, resumed
from paceline.errors import UsageError
from paceline.runtime.rundir import RunDir


def write(root: Path, **files: str) -> None:
    """Write files; two underscores in a name stand for a slash, and the suffix is .py."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(script: Path, root: Path | None = None) -> list[str]:
    """The files that the fingerprint of `script` covers."""
    return list(fingerprint(script, root or script.parent))


def test_a_fingerprint_has_the_script_and_the_modules_that_it_imports(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="import os, torch\nimport model as m\nfrom lib import data, config\nfrom lib.deep.er import thing\n",
        model="def f():\n    from helper import g\n",
        helper="import importlib\nimportlib.import_module('plugin')\n__import__('other')\n",
        plugin="",
        other="import train",
        lib__data="from . import near\nfrom .deep import er\nfrom ..outside import x\n",
        lib__near="",
        lib__deep__er="from ..up import *\n",
        lib__up="",
        never="",
        lib__never="",
    )
    (tmp_path / "lib" / "deep" / "__init__.py").touch()
    assert names(tmp_path / "train.py") == [
        "helper.py", "lib/data.py", "lib/deep/__init__.py", "lib/deep/er.py", "lib/near.py", "lib/up.py", "model.py",
        "other.py", "plugin.py", "train.py",
    ]  # fmt: skip
    found = fingerprint(tmp_path / "train.py", tmp_path)
    assert found["model.py"] == hashlib.sha256((tmp_path / "model.py").read_bytes()).hexdigest()


def test_a_module_is_covered_with_its_packages(tmp_path: Path) -> None:
    write(tmp_path, pkg__base="", pkg__sub__train="from ..shared import x\n", pkg__shared="import top", top="")
    (tmp_path / "pkg" / "__init__.py").write_text("from . import base\n")
    assert names(tmp_path / "pkg" / "sub" / "train.py", tmp_path) == [
        "pkg/__init__.py", "pkg/base.py", "pkg/shared.py", "pkg/sub/train.py", "top.py",
    ]  # fmt: skip
    plan = RunPlan(script=tmp_path / "pkg" / "sub" / "train.py", module="pkg.sub.train", cwd=tmp_path, run=tmp_path)
    assert plan.code_root == tmp_path
    assert RunPlan(script=tmp_path / "top.py", cwd=Path("/"), run=tmp_path).code_root == tmp_path


def test_installed_packages_and_environments_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, train="import env.lib, extra\n", env__lib="", extra="")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert names(tmp_path / "train.py") == ["extra.py", "train.py"]


def test_code_that_cannot_be_parsed_is_covered_and_imports_nothing(tmp_path: Path) -> None:
    write(tmp_path, train="import broken, binary", broken="import other (", other="")
    (tmp_path / "binary.so").write_bytes(b"\x7fELF import other")
    assert names(tmp_path / "train.py") == ["binary.so", "broken.py", "train.py"]
    (tmp_path / "nul.py").write_bytes(b"import other\0")
    assert names(tmp_path / "nul.py") == ["nul.py"]
    with pytest.raises(UsageError, match=r"cannot read .*gone\.py"):
        fingerprint(tmp_path / "gone.py", tmp_path)


def test_differences_name_each_file() -> None:
    assert differences({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == [
        "b has changed",
        "c is missing",
        "d is new",
    ]


# ---------------------------------------------------------------- at a resume


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run of train.py, which imports model.py. Nothing was committed."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, train="import model", model="dropout = 0.1")
    made = RunDir.create(tmp_path / "run")
    plan = RunPlan(script=Path("train.py"), run=made.path)
    RunPlan(script=Path("train.py"), run=made.path, fingerprint=fingerprint(plan.script, plan.code_root)).save()
    return made


def checked(run: RunDir, *, allow: bool = False, **given: object) -> tuple[RunPlan, list[str]]:
    """The plan of a resume, and what the user is told."""
    sheet = Sheet()
    return check_code(resumed(run.path, given), sheet, allow_changes=allow), sheet.notes


def test_unchanged_code_goes_on_without_a_word(run: RunDir) -> None:
    plan, told = checked(run)
    assert told == []
    assert plan.fingerprint == json.loads(run.plan_file.read_text())["fingerprint"]
    (run.path.parent / "notes.py").write_text("not imported")
    assert checked(run)[1] == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "dropout = 0.5"}, "model.py has changed"),
        ({"train": "import model, extra", "extra": ""}, "extra.py is new, train.py has changed"),
        ({"train": "pass"}, "model.py is missing, train.py has changed"),
    ],
    ids=["changed", "new", "missing"],
)
def test_changed_code_is_named_and_goes_on_only_if_allowed(change: dict[str, str], named: str, run: RunDir) -> None:
    write(run.path.parent, **change)
    with pytest.raises(UsageError) as caught:
        paceline("run", "--resume", "run")
    assert f"the code of run is not that with which the run began: {named}. " in str(caught.value)
    assert "add --allow-changes" in str(caught.value)
    plan, told = checked(run, allow=True)
    assert told == [f"warning: {named}: the result of this run is no longer that of one script"]
    plan.save()
    assert checked(run)[1] == [], "the new code is now that of the run"


def test_another_script_is_a_change_and_a_moved_one_is_not(run: RunDir, tmp_path: Path) -> None:
    write(tmp_path, other="import model")
    with pytest.raises(UsageError, match=r"other\.py is new, train\.py is missing"):
        checked(run, script=Path("other.py"))
    write(tmp_path, moved__train="import model", moved__model="dropout = 0.1")
    assert checked(run, script=Path("moved/train.py"))[1] == []


def test_a_run_without_a_fingerprint_goes_on_with_a_warning(run: RunDir) -> None:
    kept = run.plan()
    del kept["fingerprint"]
    run.write_plan(kept)
    plan, told = checked(run)
    (said,) = told
    assert said.startswith(f"warning: {run.path} does not say with which code it began")
    assert set(plan.fingerprint or ()) == {"model.py", "train.py"}


def test_changes_are_allowed_only_at_a_resume(run: RunDir) -> None:
    with pytest.raises(UsageError, match="--allow-changes: only a resumed run"):
        paceline("run", "--allow-changes", "train.py")
