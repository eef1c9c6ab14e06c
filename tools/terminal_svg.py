"""Draws a terminal: ``python tools/terminal_svg.py FILE.svg < lines``. Lines that begin with ``$`` are commands."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main(target: str) -> None:
    """Write the lines of standard input to `target` as a picture of a terminal."""
    console = Console(record=True, width=100, file=io.StringIO())
    for line in sys.stdin.read().splitlines():
        style = "bold green" if line.startswith("$") else "yellow" if line.startswith("warning") else ""
        console.print(Text(line, style))
    drawn = console.export_svg(title="paceline")
    Path(target).write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))  # no fonts from other sites


if __name__ == "__main__":
    main(sys.argv[1])
