"""The paths, links, layers, messages and options that the documents name exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from paceline import messages
from paceline.config import load
from paceline.messages import AnyMessage

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "paceline"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

ROLES = ("coordinator", "server", "worker")

_CODE = re.compile(r"`([^`\s]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_TOP = ("src/", "tests/", "docs/", "bench/", "tools/", "examples/")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _paths(text: str) -> set[str]:
    """Return the words in backticks that look like a path: below a known folder, or a Python file of the package."""
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    found = set()
    for word in _CODE.findall(text):
        word = word.rstrip("/").split("::")[0]
        if any(mark in word for mark in "*{<…=") or "NNNN" in word or "NN_" in word:
            continue
        if f"{word}/".startswith(_TOP) or ("/" in word and word.split("/")[0] in rooms):
            found.add(word)
    return found


def _exists(word: str) -> bool:
    return (ROOT / word).exists() or (PACKAGE / word).exists()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_path_exists(page: Path) -> None:
    text = page.read_text()
    words = _paths(text)
    if page.name == "architecture.md":  # in these pages a bare file name is a module of the package
        words |= {word for word in _CODE.findall(text) if re.fullmatch(r"\w+\.py", word)}
    missing = sorted(word for word in words if not _exists(word))
    assert not missing, f"{_name(page)} names files that do not exist"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of all headings, as common Markdown renderers make them."""
    anchors = set()
    for line in _FENCE.sub("", page.read_text()).splitlines():
        if line.startswith("#"):
            title = re.sub(r"[`*]", "", line.lstrip("#").strip()).lower()
            anchors.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=_name)
def test_every_link_has_a_target(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert not broken, f"{_name(page)} has links that lead nowhere"


def _owners(text: str) -> list[tuple[str, str]]:
    """Rows of the tables of machines: (class, file)."""
    rows = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)`", text, re.MULTILINE)
    return [(owner, file) for owner, file in rows if owner[0].isupper()]


def test_every_class_of_the_architecture_tables_is_in_the_file_named_beside_it() -> None:
    owners = _owners((ROOT / "docs" / "architecture.md").read_text())
    assert len(owners) > 40
    missing = [(owner, file) for owner, file in owners if f"\nclass {owner}" not in (PACKAGE / file).read_text()]
    assert not missing


def test_every_module_of_the_three_cores_is_explained() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    cores = [f"core/{role}/{file.name}" for role in ROLES for file in (PACKAGE / "core" / role).glob("*.py")]
    missing = [file for file in cores if not file.endswith("__init__.py") and f"`{file}`" not in text]
    assert not missing, "name them in the tables of docs/architecture.md, with what they own"


def _layers() -> list[list[str]]:
    """The layers of pyproject.toml from top to bottom, with the rooms that exist."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = [[name.strip(" ()") for name in layer.split("|")] for layer in layers]
    exist = [[r for r in line if (PACKAGE / r).is_dir() or (PACKAGE / f"{r}.py").exists()] for line in rooms]
    return [line for line in exist if line]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_drawn_layers_are_those_of_the_contract(page: str) -> None:
    fences = [fence.splitlines()[1:-1] for fence in _FENCE.findall((ROOT / page).read_text())]
    drawn = next(lines for lines in fences if "cli" in lines and "types" in lines)
    assert [[name.strip() for name in line.split("|")] for line in drawn] == _layers()


def test_the_protocol_page_names_every_message_and_no_other() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    table = text[text.index("### All messages") : text.index("## Attempts")]
    named = {word for line in table.splitlines() for word in _CODE.findall(line.split("|")[1] if "|" in line else "")}
    sent = {message.__name__ for message in AnyMessage.__args__}
    assert named == sent
    assert named <= set(messages.__all__)


def test_the_reference_names_every_environment_variable() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    read = {value for value in vars(load).values() if isinstance(value, str) and re.fullmatch(r"PACELINE_\w+", value)}
    assert read
    assert set(re.findall(r"`(PACELINE_\w+)`", text)) == read


def test_decisions_are_numbered_without_gaps_or_repeats() -> None:
    numbers = [int(record.name[:4]) for record in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1))
    titles = [record.read_text().split(maxsplit=2)[1] for record in RECORDS]
    assert [int(title.rstrip(".:")) for title in titles] == numbers


def test_every_promise_has_its_section_and_its_test() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    sections = re.findall(r"^## (\d)\. ", text, re.MULTILINE)
    files = sorted((ROOT / "tests" / "promises").glob("test_promise_*.py"))
    assert sections == [str(n) for n in range(1, 8)]
    assert sorted({file.name[len("test_promise_") :][:2] for file in files}) == [f"0{n}" for n in sections]
    assert all(_name(file) in text for file in files)
