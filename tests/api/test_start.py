"""The cost of a start: help appears at once, and `import paceline` is cheap."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, python, run

pytestmark = pytest.mark.usefixtures("cold")  # a command that is forked has loaded everything before


@pytest.mark.parametrize("command", ["", "run", "status", "demo"])
def test_help_appears_at_once_and_fits_a_screen(command: str, tmp_path: Path) -> None:
    # The minimum of a few runs, compared with that of a bare interpreter: a busy machine slows both.
    words = [*PACELINE, *command.split(), "--help"]
    helps = [run(words, tmp_path, timeout_s=20).check() for _ in range(3)]
    bare = min(python("-c", "pass", cwd=tmp_path).seconds for _ in range(3))
    assert min(h.seconds for h in helps) < max(0.3, 15 * bare)
    assert len(helps[0].lines) <= (74 if command == "run" else 40)
    assert max(map(len, helps[0].lines)) <= 100


def test_importing_paceline_takes_about_a_second_at_most(tmp_path: Path) -> None:
    words = ("-c", "import paceline; paceline.errors.UsageError")
    seconds = min(python(*words, cwd=tmp_path, timeout_s=20).check().seconds for _ in range(3))
    bare = min(python("-c", "pass", cwd=tmp_path).seconds for _ in range(3))
    assert seconds < max(1.0, 20 * bare)
