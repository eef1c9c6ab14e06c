"""The pages of the documentation as a reader uses them: files to save, commands to run, and the output to expect.

A block is a file if the line before it ends with a colon and names the file last, in backticks. A block of `bash` is
run in the folder of the page, after all blocks before it. A block of `text` is the output of the commands before it:
its lines must be printed in that order; a line of dots (…) stands for any lines. Numbers and digests differ from
machine to machine, so they are not compared.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.real_runs import ROOT, environment
from tests.kit.warm import WarmServer
from tests.kit.warm_tools import WarmTools

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./-]+\.\w+)`[^`]*:$")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
_NUMBER = re.compile(r"\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
_TIMEOUT_S = 200.0


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    file: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        before = text[: found.start()].rstrip().rpartition("\n")[2].strip()
        named = _FILE.search(before)
        line = text.count("\n", 0, found.start()) + 1
        language, content = found.groups()
        yield Block(str(page.relative_to(ROOT)), line, language, content, named[1] if named is not None else None)


def missing(expected: str, printed: str) -> str | None:
    """The first line of the block `expected` that is not in `printed`, at its place in the order; None if all are."""
    rest = iter(_masked(line) for line in printed.splitlines())
    for line in expected.splitlines():
        if line.strip() in ("", "…"):
            continue
        if not any(_masked(line) == other for other in rest):
            return line
    return None


def _masked(line: str) -> str:
    return " ".join(_NUMBER.sub("0", _DIGEST.sub("DIGEST", line)).split())


class Reader:
    """Somebody who follows a page in `folder`: saves its files, types its commands, reads what they print.

    A context manager. With a `warm` server, commands are forked from it; otherwise they are started.
    """

    def __init__(self, folder: Path, warm: WarmServer | None) -> None:
        self.folder = folder
        self.printed = ""
        self.seconds: dict[str, float] = {}
        tools = folder / ".tools"
        tools.mkdir(parents=True)
        commands = {"paceline": [sys.executable, "-m", "paceline"], "python": [sys.executable]}
        self._warm = None if warm is None else WarmTools(tools, warm, commands)
        for name, words in commands.items() if warm is None else ():
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
            tool.chmod(0o755)
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        self._env = {**(os.environ if warm is None else environment()), "PATH": path, "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._warm is not None:
            self._warm.close()

    @property
    def cpu_s(self) -> float:
        """The processor time of the commands that were forked."""
        return 0.0 if self._warm is None else self._warm.cpu_s

    def save(self, block: Block) -> Path:
        """Save a block as the file that the page names."""
        assert block.file is not None
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        return path

    def type(self, block: Block) -> None:
        """Run the commands of a block, which must succeed; `printed` then is their output."""
        began = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            self.printed = process.communicate(timeout=_TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"{block.where} did not end:\n{process.communicate()[0]}") from None
        self.seconds[block.where] = time.monotonic() - began
        assert process.returncode == 0, f"{block.where} ended with {process.returncode}:\n{self.printed}"

    def compare(self, block: Block) -> None:
        """Check that the commands typed last have printed a block."""
        line = missing(block.text, self.printed)
        assert line is None, f"{block.where}: this line was not printed:\n{line}\nbut:\n{self.printed}"
