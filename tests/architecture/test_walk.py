"""`tools/walk.py` counts files, changes and returns as its docstring defines them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.walk import Figures, Walk, figures, steps

ROOT = Path(__file__).parents[2]
WALK = (("a", "f"), ("b", "g"), ("b", "h"), ("a", "i"), ("c", "k"), ("a", "f.<locals>.<genexpr>"))


def test_a_return_is_a_change_to_a_file_that_was_visited() -> None:
    assert figures(WALK) == Figures(files=3, changes=4, returns=2)
    assert figures(WALK[:1]) == Figures(files=1, changes=0, returns=0)
    assert figures(()) == Figures(files=0, changes=0, returns=0)


def test_nested_code_is_part_of_the_function_around_it() -> None:
    assert figures(Walk(WALK, WALK).whole_functions) == Figures(files=3, changes=3, returns=1)


def test_the_list_has_one_line_per_visit() -> None:
    assert list(steps(WALK)) == [
        ("a", False, ["f"]),
        ("b", False, ["g", "h"]),
        ("a", True, ["i"]),
        ("c", False, ["k"]),
        ("a", True, ["f.<locals>.<genexpr>"]),
    ]


def test_the_walk_of_a_failover_and_of_a_rewind_is_found() -> None:
    command = [sys.executable, str(ROOT / "tools" / "walk.py"), "--json", "failover", "rewind"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    for name in ("failover", "rewind"):
        assert found[name]["first_entries"]["files"] > 20
