"""The file of a module that `paceline run -m` names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.engines.module_file import module_file, named_script
from paceline.errors import UsageError


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a module, a package that must not be imported, and a package without code."""
    (tmp_path / "alone.py").touch()
    for name in ("pkg", "pkg/deep", "bare"):
        (tmp_path / name).mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for name in ("train", "__main__", "deep/train"):
        (tmp_path / "pkg" / f"{name}.py").touch()
    (tmp_path / "bare" / "train.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("alone", "alone.py"),
        ("pkg", "pkg/__main__.py"),
        ("pkg.train", "pkg/train.py"),
        ("pkg.deep.train", "pkg/deep/train.py"),
        ("bare.train", "bare/train.py"),
    ],
)
def test_a_module_of_this_directory_is_found_and_nothing_is_imported(here: Path, name: str, file: str) -> None:
    before = set(sys.modules)
    assert module_file(name, here) == here / file
    assert set(sys.modules) == before


def test_an_installed_module_is_found(tmp_path: Path) -> None:
    assert module_file("json.tool", tmp_path).name == "tool.py"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("alone.py", "-m alone.py: this is not the name of a module. Write package.module, or leave -m out"),
        ("pkg/train", "this is not the name of a module"),
        ("nowhere", "there is no module nowhere in "),
        ("pkg.nowhere", "there is no module pkg.nowhere in "),
        ("alone.deep", "there is no module alone.deep in "),
        ("bare", "there is no module bare.__main__ in "),
        ("sys", "this module has no Python file"),
    ],
)
def test_what_is_no_module_is_refused_by_name(here: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        module_file(name, here)
    assert said in str(refused.value)


def test_a_script_stays_a_script(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    assert named_script(Path("alone.py"), is_module=False) == {"script": Path("alone.py"), "module": ""}
    assert named_script(Path("pkg.train"), is_module=True) == {"script": here / "pkg/train.py", "module": "pkg.train"}
