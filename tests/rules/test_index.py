"""Every rule and every promise has its file, and the code that a file names as upholding it exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.kit.tiers import LONGEST_FIRST, REAL_UNITS

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src" / "paceline"
RULES = sorted((TESTS / "rules").glob("test_rule_*.py"))
PROMISES = sorted((TESTS / "promises").glob("test_promise_*.py"))


def number_of(file: Path) -> int:
    return int(file.stem.split("_")[2])


def docstring_of(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def upholding(file: Path) -> list[str]:
    """Return the dotted names after `Upheld by:`."""
    return re.findall(r"`([\w.]+)`", docstring_of(file).partition("Upheld by:")[2])


def exists(name: str) -> bool:
    """Return whether `paceline` has a package, module, class or function of this name."""
    path, *inside = SOURCE, *name.split(".")
    while inside and (path / inside[0]).is_dir():
        path /= inside.pop(0)
    if inside and (path / f"{inside[0]}.py").is_file():
        body: list[ast.stmt] = ast.parse((path / f"{inside.pop(0)}.py").read_text()).body
        while inside:
            found = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == inside[0]]
            if not found:
                return False
            inside.pop(0)
            body = found[0].body
        return True
    return not inside


def test_every_rule_and_every_promise_has_a_file() -> None:
    assert sorted({number_of(file) for file in RULES}) == [*range(1, 20), 21, 22, 23, 24]
    assert [number_of(file) for file in PROMISES] == list(range(1, 8))


@pytest.mark.parametrize("file", [*RULES, *PROMISES], ids=lambda file: str(file.stem))
def test_a_file_states_what_it_shows_and_names_the_code_that_upholds_it(file: Path) -> None:
    kind = "Rule" if file in RULES else "Promise"
    assert re.match(rf"{kind} {number_of(file)}\b", docstring_of(file))
    names = upholding(file)
    assert names
    assert [name for name in names if not exists(name)] == []


def test_the_files_that_the_tiers_name_exist() -> None:
    names = [file.name for file in TESTS.rglob("test_*.py")]
    assert [name for name in {*LONGEST_FIRST, *REAL_UNITS} if name not in names] == []
