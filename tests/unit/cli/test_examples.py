"""`paceline examples`: the list, and copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.kit.real_runs import ROOT

from paceline.cli.examples import SCRIPTS, command
from paceline.errors import UsageError

NAMES = sorted(file.stem for file in (ROOT / "examples").glob("*.py"))


def call(*words: str) -> str:
    return CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False).output


def test_every_example_is_installed_with_the_package_and_listed_with_one_line() -> None:
    assert sorted(file.stem for file in SCRIPTS.glob("*.example")) == NAMES
    lines = call().splitlines()
    assert [line.split()[0] for line in lines[:-1]] == NAMES
    assert all(len(line.split(None, 1)[1]) > 20 for line in lines[:-1])
    assert lines[-1] == f"`paceline examples {NAMES[-1]}` copies one to this directory"


def test_a_copy_is_the_example_and_replaces_nothing(tmp_path: Path) -> None:
    said = call("tabular", "char_lm", "--dir", str(tmp_path / "new"))
    for name in ("tabular", "char_lm"):
        copy = tmp_path / "new" / f"{name}.py"
        assert copy.read_text() == (ROOT / "examples" / f"{name}.py").read_text()
        assert f"{copy}: try `python {copy}`" in said
    (tmp_path / "new" / "tabular.py").write_text("mine")
    with pytest.raises(UsageError, match=r"tabular\.py exists: remove it, or choose another folder with --dir"):
        call("fashion_mnist", "tabular", "--dir", str(tmp_path / "new"))
    assert (tmp_path / "new" / "tabular.py").read_text() == "mine"
    assert not (tmp_path / "new" / "fashion_mnist.py").exists()


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(
        UsageError,
        match="there is no example 'lenet': choose from char_lm, fashion_mnist, serve_follow, shards, tabular",
    ):
        call("lenet")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*tabular\.py: .* \(choose another folder with --dir\)"):
        call("tabular", "--dir", str(tmp_path / "file" / "below"))
