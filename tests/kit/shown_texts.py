"""The texts that users read: messages of the code, pages of the documentation, and the help of commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
from tests.kit.real_runs import ROOT

from paceline.cli.main import cli

PACKAGE = ROOT / "src" / "paceline"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
"""Records in docs/decisions/ are left out: they describe their own time."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that a user reads, and where it is."""

    where: str
    text: str


def commands(group: click.Group = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        yield f"{name} {word}".strip(), command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}".strip())


def _docstrings(tree: ast.AST) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.add(id(statement.value))
    return found


def _shown(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def _messages(file: Path) -> Iterator[Text]:
    tree = ast.parse(file.read_text())
    skipped = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield Text(f"{file.relative_to(ROOT)}:{node.lineno}", _shown(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield Text(f"{file.relative_to(ROOT)}:{node.lineno}", node.value)


@cache
def messages() -> tuple[Text, ...]:
    return tuple(text for file in sorted(PACKAGE.rglob("*.py")) for text in _messages(file))


@cache
def pages() -> tuple[Text, ...]:
    return tuple(
        Text(f"{page.relative_to(ROOT)}:{number}", line)
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
    )


@cache
def helps() -> tuple[Text, ...]:
    """The help of every command: docstrings that users read."""
    return tuple(Text(f"paceline {name} --help", command.help or "") for name, command in commands())
