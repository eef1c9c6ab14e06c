"""Files, functions and classes stay small enough to read."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.house import check_table, package, snippet
from tools.house import large_classes, long_files, long_functions

FILES: dict[str, int] = {}
"""Files over 400 lines. May only shrink: a number that is too high fails as well."""

FUNCTIONS: dict[str, int] = {}
"""Functions over 60 lines."""

CLASSES: dict[str, int] = {}
"""Classes over 25 methods; properties count."""


def test_files_functions_and_classes_above_the_limits_are_found(tmp_path: Path) -> None:
    methods = "\n".join(f"    def m{n}(self) -> None: ..." for n in range(26))
    body = "\n".join("    x = 1" for _ in range(60))
    long = "\n".join("x = 1" for _ in range(401))
    source = snippet(tmp_path, a=f"class Large:\n{methods}\n", b=f"def f():\n{body}\n", c=f"{long}\n")
    assert large_classes(source) == {"a.py:Large": 26}
    assert long_functions(source) == {"b.py:f": 61}
    assert long_files(source) == {"c.py": 401}


def test_files_functions_and_classes_at_the_limits_are_allowed(tmp_path: Path) -> None:
    methods = "\n".join(f"    def m{n}(self) -> None: ..." for n in range(25))
    body = "\n".join("    x = 1" for _ in range(59))
    long = "\n".join("x = 1" for _ in range(400))
    source = snippet(tmp_path, a=f"class Large:\n{methods}\n", b=f"def f():\n{body}\n", c=f"{long}\n")
    assert (large_classes(source), long_functions(source), long_files(source)) == ({}, {}, {})


def test_no_file_is_over_400_lines() -> None:
    check_table(long_files(package()), FILES)


def test_no_function_is_over_60_lines() -> None:
    check_table(long_functions(package()), FUNCTIONS)


def test_no_class_has_more_than_25_methods() -> None:
    check_table(large_classes(package()), CLASSES)
