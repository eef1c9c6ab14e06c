"""Every option, variable, argument, command and attribute that a message or a page names exists.

Messages are the string literals of `src/paceline` that are not docstrings. Pages are README.md, CONTRIBUTING.md and
those of docs/; records in docs/decisions/ describe their own time and are left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import signature

import pytest
from tests.kit.real_runs import ROOT
from tests.kit.shown_texts import PACKAGE, PAGES, Text, commands, helps, messages, pages

import paceline
import paceline.datasets
from paceline.config import load
from paceline.engines.run_options import RunOptions

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+\b")
VARIABLE = re.compile(r"\b_?PACELINE_[A-Z_]+\b")
ARGUMENT = re.compile(r"(?<![\w.$@/-])([a-z][a-z_]+)=(?!=)")
QUOTED = re.compile(r"`([a-z]+_[a-z_]+)`")
ATTRIBUTE = re.compile(r"\b(job|paceline)\.([a-z]\w*)")
COMMAND = re.compile(r"(?:^|`)paceline ([a-z]+(?: [a-z]+)?)([^`\n]*)")

DEVELOPERS = ("src/paceline/sim/", "src/paceline/testing/")
"""Where messages are for developers of Paceline, and name parts of a scenario."""

MARKUP = ("src/paceline/engines/report_page.py", "src/paceline/coordinator/metrics_text.py")
"""Files whose texts are HTML or the format of Prometheus."""

OPTIONS_OF_OTHERS = {
    "--install": "wsl, on Windows",
    "--head": "ray start",
    "--working-dir": "ray job submit",
    "--index-url": "pip",
    "--nproc-per-node": "torchrun",
    "--cached": "git",
    "--others": "git",
    "--exclude-standard": "git",
    "--quiet": "git",
    "--bare": "git",
    "--git-dir": "git",
    "--work-tree": "git",
    "--now": "systemctl",
    "--init": "docker",
    "--network": "docker",
    "--shm-size": "docker",
    "--stop-timeout": "docker",
    "--cpus": "docker",
    "--no-kill": "Slurm",
    "--from-file": "kubectl",
    "--conf": "spark-submit",
    "--host": "Spark's own daemons",
    "--port": "Spark's own daemons",
    "--webui-port": "Spark's own daemons",
    "--memory": "Spark's own daemons",
    "--work-dir": "Spark's own daemons",
}
VARIABLES_OF_OTHERS = {"_PACELINE_COMPLETE": "click reads it for completion in a shell"}
WORDS_OF_OTHERS = {
    "sparse": "torch.nn.Embedding",
    "device": "torch.nn.Module.to_empty",
    "listen": "ZmqPort, for those who write a role",
    "encrypt": "ZmqPort, for those who write a role",
    "charset": "HTTP",
    "version": "Prometheus, for its text format",
    "journal_mode": "SQLite",
    "synchronous": "SQLite",
}
"""Words that a text writes as `word` or word=, and that are arguments of others."""


# ------------------------------------------------------------------ what exists


@cache
def options() -> Mapping[str, frozenset[str]]:
    """The options of each command, by its name."""
    found = {}
    for name, command in commands():
        opts = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts) if opt.startswith("-")}
        found[name] = frozenset(opts | {"--help"})
    return found


@cache
def script_options() -> frozenset[str]:
    """The options of the scripts of this repository, and of the scripts in the pages."""
    files = [file for folder in ("examples", "bench", "tools", "tests") for file in (ROOT / folder).rglob("*.py")]
    files += PACKAGE.rglob("*.example")
    declared = re.compile(r"add_?(?:argument|option)\(\s*\"(--[\w-]+)\"")
    return frozenset(opt for file in (*files, *PAGES) for opt in declared.findall(file.read_text()))


@cache
def variables() -> frozenset[str]:
    return frozenset(value for key, value in vars(load).items() if key.isupper() and isinstance(value, str))


@cache
def arguments() -> frozenset[str]:
    """The parameters of the public functions."""
    functions: list[Callable[..., object]] = [paceline.join, paceline.digest, paceline.datasets.fashion_mnist]
    functions += [paceline.launch, paceline.load]
    functions += [paceline.data.open, paceline.data.split, paceline.data.iterable]
    members = [getattr(owner, name) for owner in (paceline.Job, paceline.Run) for name in dir(owner) if name[0] != "_"]
    functions += [member for member in members if callable(member)]
    names = frozenset(name for function in functions for name in signature(function).parameters)
    return names | RunOptions.__annotations__.keys()


Texts = Callable[[], tuple[Text, ...]]
TEXTS = pytest.mark.parametrize("texts", [messages, pages, helps], ids=lambda texts: texts.__name__)


@TEXTS
def test_every_option_that_is_named_exists(texts: Texts) -> None:
    known = frozenset().union(*options().values()) | script_options() | set(OPTIONS_OF_OTHERS)
    unknown = {(t.where, option) for t in texts() for option in OPTION.findall(t.text) if option not in known}
    assert not unknown


@TEXTS
def test_every_variable_that_is_named_exists(texts: Texts) -> None:
    known = variables() | set(VARIABLES_OF_OTHERS)
    unknown = {(t.where, name) for t in texts() for name in VARIABLE.findall(t.text) if name not in known}
    assert not unknown


def _words_after(line: str) -> Iterator[str]:
    """The words of a command line up to the script, whose options are its own."""
    try:
        words = shlex.split(line.partition("#")[0])
    except ValueError:  # a quotation mark of the sentence around it
        words = line.split()
    for word in words:
        if word.endswith((".py", "script", "SCRIPT")):
            return
        yield word


@TEXTS
def test_every_command_that_is_named_exists_and_has_the_options_beside_it(texts: Texts) -> None:
    wrong = set()
    for text in texts():
        if text.where.startswith("src/") and "`" not in text.text:
            continue  # such as the name of a hash
        for name, rest in COMMAND.findall(text.text):
            first = name.split()[0]
            command = name if name in options() else first
            if command not in options():
                wrong.add((text.where, f"paceline {name}"))
                continue
            for word in _words_after(rest):
                option = word.partition("=")[0].rstrip(".,;:)")
                if re.fullmatch(r"-\w|--[a-z][\w-]+", option) and option not in options()[command]:
                    wrong.add((text.where, f"paceline {command} {option}"))
    assert not wrong


@TEXTS
def test_every_attribute_of_the_job_and_the_package_exists(texts: Texts) -> None:
    names = {"job": set(dir(paceline.Job)), "paceline": {*paceline.__all__, "__version__"}}
    rooms = {path.stem for path in PACKAGE.iterdir()}
    unknown = {
        (text.where, f"{owner}.{name}")
        for text in texts()
        for owner, name in ATTRIBUTE.findall(text.text)
        if name not in names[owner] | {"py", "fish"} and not (owner == "paceline" and name in rooms)
    }
    assert not unknown


def test_every_argument_that_a_message_names_exists() -> None:
    known = arguments() | set(WORDS_OF_OTHERS)
    unknown = {
        (text.where, word)
        for text in messages()
        if " " in text.text and not text.where.startswith((*DEVELOPERS, *MARKUP))
        for word in (*ARGUMENT.findall(text.text), *QUOTED.findall(text.text))
        if word not in known
    }
    assert not unknown


def test_the_lists_of_others_are_needed() -> None:
    every = " ".join(text.text for texts in (messages, pages, helps) for text in texts())
    for word in (*OPTIONS_OF_OTHERS, *VARIABLES_OF_OTHERS, *WORDS_OF_OTHERS):
        assert word in every, f"nothing names {word} any more: take it out of the list"
