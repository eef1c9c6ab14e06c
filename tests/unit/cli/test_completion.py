"""Completion in a shell, as docs/reference.md describes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, run


def test_the_command_prints_the_lines_that_switch_completion_on(tmp_path: Path) -> None:
    shown = run(PACELINE, tmp_path, _PACELINE_COMPLETE="bash_source").check()
    assert "complete -o nosort -F _paceline_completion paceline" in shown.out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("paceline ex", {"examples", "export"}),
        ("paceline run --re", {"--replicas", "--resume"}),
        ("paceline dev ch", {"chaos"}),
    ],
)
def test_commands_and_options_are_completed(line: str, offered: set[str], tmp_path: Path) -> None:
    last = str(len(line.split()) - 1)
    shown = run(PACELINE, tmp_path, _PACELINE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=last).check()
    assert {word.partition(",")[2] for word in shown.lines} == offered
