"""The files in deploy/ call commands and options that exist, and the page that describes them names each file."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from tests.kit.real_runs import ROOT
from tests.kit.shown_texts import commands

DEPLOY = ROOT / "deploy"


def _calls(name: str) -> Iterator[list[str]]:
    """The words of each call of `paceline` in a file of deploy/."""
    text = (DEPLOY / name).read_text()
    if name.endswith(".yaml"):
        for block in re.findall(r"^ +args:\n((?: +- .*\n)+)", text, re.MULTILINE):
            yield [line.strip().removeprefix("- ") for line in block.splitlines()]
        return
    code = "\n".join(line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#"))
    for call in re.findall(r"(?:^|[ /])paceline ((?:token|agent|run|serve) .*)", code, re.MULTILINE):
        yield call.split()


def test_every_call_of_paceline_has_options_that_exist() -> None:
    options = {name: {o for p in command.params for o in p.opts} for name, command in commands()}
    found = []
    for name in (
        "paceline-agent.service",
        "paceline-serve.service",
        "slurm.sbatch",
        "kubernetes.yaml",
        "kubernetes-serve.yaml",
    ):
        for words in _calls(name):
            found.append((name, words[0]))
            given = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
            assert given <= options[words[0]], name
    assert len(found) == 8, found


def test_the_scripts_of_slurm_are_valid_shell() -> None:
    subprocess.run(["bash", "-n", DEPLOY / "slurm.sbatch"], check=True)


def test_the_page_on_clusters_names_every_file() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert [file.name for file in DEPLOY.iterdir() if f"deploy/{file.name}" not in page] == []


def test_the_image_copies_what_the_package_is_built_from() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert all((ROOT / word).exists() for line in copied for word in line.split())
