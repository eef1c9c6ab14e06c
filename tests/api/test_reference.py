"""docs/reference.md and docs/words.md against the code: signatures, arguments, errors, options, defaults, fields."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path

import click
import msgspec
import pytest
from tests.kit.shown_texts import messages

import paceline
import paceline.datasets
from paceline.cli.main import cli
from paceline.coordinator.summary_text import summary_lines
from paceline.engines.plan import RunPlan
from paceline.engines.runs import STATES
from paceline.messages.status import RunSummary
from paceline.worker.metrics import Metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = (DOCS / "reference.md").read_text()
WORDS = (DOCS / "words.md").read_text()

FUNCTIONS: dict[str, Callable[..., object]] = {
    "paceline.join": paceline.join,
    "paceline.digest": paceline.digest,
    "paceline.launch": paceline.launch,
    "paceline.load": paceline.load,
    "paceline.datasets.fashion_mnist": paceline.datasets.fashion_mnist,
    "job.prepare": paceline.Job.prepare,
    "job.validate": paceline.Job.validate,
    "job.evaluate": paceline.Job.evaluate,
    "job.batches": paceline.Job.batches,
    "job.log": paceline.Job.log,
    "job.stop": paceline.Job.stop,
    "job.stop_when": paceline.Job.stop_when,
    "job.on_plateau": paceline.Job.on_plateau,
    "job.save": paceline.Job.save,
    "job.servable": paceline.Job.servable,
}
SCREEN = ("src/paceline/cli/", "src/paceline/engines/", "src/paceline/coordinator/status.py")
"""Where the texts are made that `paceline` shows."""
DEVELOPERS = ("src/paceline/cli/dev.py", "src/paceline/cli/chaos.py")


def _section(page: str, title: str) -> str:
    """The text below a heading, up to the next heading of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title!r}"
    return re.split(rf"^#{{1,{len(found[1])}}} ", found[2], flags=re.MULTILINE)[0]


def _rows(text: str) -> dict[str, str]:
    """The rows of all tables of a text: what each word in backticks of the first column is said to be."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) >= 4:
            found |= {word: cells[2].strip() for word in re.findall(r"`([^`]+)`", cells[1])}
    return found


def _signature(name: str, function: Callable[..., object]) -> str:
    words, starred = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        value = parameter.default
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        words.append(f"{stars}{parameter.name}" + ("" if value is parameter.empty else f"={shown}"))
    return f"`{name}({', '.join(words)})`"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_its_signature_and_a_row_for_each_argument(name: str) -> None:
    title = "paceline.datasets" if "datasets" in name else name
    section = _section(REFERENCE, title)
    assert _signature(name, FUNCTIONS[name]) in section.splitlines()
    parameters = [p for p in inspect.signature(FUNCTIONS[name]).parameters if p != "self"]
    if len(parameters) > 1:
        assert list(_rows(section)) == parameters


def test_every_property_of_the_job_is_described() -> None:
    names = {name for name, member in vars(paceline.Job).items() if isinstance(member, property)}
    rows = set(_rows(_section(REFERENCE, "State of the job")))
    assert {row for row in rows if row.count(".") == 1} == {f"job.{name}" for name in names}
    deeper = {row.removeprefix("job.metrics.") for row in rows if row.count(".") == 2}
    assert all(hasattr(Metrics({}, ""), name) for name in deeper)


def test_every_member_of_a_launched_run_is_described() -> None:
    rows = {re.split(r"\W", row.removeprefix("run."))[0]: row for row in _rows(_section(REFERENCE, "A launched run"))}
    names = {name for name in dir(paceline.Run) if not name.startswith("_")}
    assert names <= set(rows)
    for name in names:
        member = inspect.getattr_static(paceline.Run, name)
        if not isinstance(member, property):
            assert f"`{rows[name]}`" == _signature(f"run.{name}", member)


def test_every_error_is_described_with_its_base() -> None:
    section = _section(REFERENCE, "Errors")
    errors = {name: error for name, error in vars(paceline.errors).items() if name.endswith("Error")}
    rows = _rows(section)
    assert set(rows) == set(errors) - {"PacelineError"}
    for name, text in rows.items():
        base = errors[name].__bases__[0].__name__
        assert base == "PacelineError" or text.startswith(f"a `{base}`"), name


def test_every_error_that_a_section_names_exists() -> None:
    named = set(re.findall(r"`([A-Z]\w+Error)`", REFERENCE + WORDS))
    assert named <= set(vars(paceline.errors)) | set(vars(builtins))


def _options(name: str) -> set[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {opt for p in command.params for opt in p.opts if opt.startswith("--")}


def test_every_option_of_run_has_a_row_with_its_default() -> None:
    rows = {
        option: text
        for words, text in _rows(_section(REFERENCE, "paceline run")).items()
        for option in re.findall(r"(?<![\w-])--?[a-z-]+", words)
    }
    short = {"-w": "--workers", "-s": "--servers"}
    named = {short.get(option, option) for option in rows}
    elsewhere = {"--resume"}  # has a section of its own
    assert named - {"-m"} == _options("run") - elsewhere
    for field in fields(RunPlan):
        option = f"--{field.name.replace('_', '-')}"
        said = rows.get(option) or rows.get({long: opt for opt, long in short.items()}.get(option, ""))
        if said is not None and field.default not in (MISSING, None, "", False):
            assert re.search(rf"`?\b{re.escape(str(field.default))}\b", said), f"{option}: {said}"


def test_every_field_of_the_summary_is_described() -> None:
    assert set(RunSummary.__struct_fields__) <= set(_rows(_section(REFERENCE, "Summary")))


# ------------------------------------------------------------------ the words on the screen


def test_every_line_of_a_summary_is_explained() -> None:
    full = RunSummary(replicas=1, restarts={"worker": 1}, failovers=1, rewinds=1)
    full = msgspec.structs.replace(full, stopped="x", checkpoint="x", warning="x", digest="x", run="x")
    shown = {line.split()[0] for line in summary_lines(full)}
    assert shown <= set(_rows(_section(WORDS, "The summary")))


def test_every_state_of_a_run_is_explained() -> None:
    assert set(STATES) <= set(_rows(_section(WORDS, "Status, runs and checkpoints")))


def test_every_word_of_the_glossary_that_a_message_uses_is_explained() -> None:
    glossary = (DOCS / "architecture.md").read_text().split("## Glossary")[1].split("### Code")[0]
    words = {word.strip(" `").split(" `")[0] for line in glossary.splitlines() for word in line.split("|")[1:2]}
    texts = [text for text in messages() if " " in text.text and text.where.startswith(SCREEN)]
    shown = " ".join(text.text for text in texts if not text.where.startswith(DEVELOPERS))
    used = {word for word in words - {"word", "---"} if re.search(rf"\b{re.escape(word)}s?\b", shown)}
    assert len(used) > 15
    assert {word for word in used if not re.search(rf"\b{re.escape(word)}\b", WORDS)} == set()
