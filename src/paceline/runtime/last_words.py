"""The last words of a process: why it ends. Its engine shows them once, after everything else that was printed."""

from __future__ import annotations

import sys

MARK = "\x1f"
"""What follows this character in a line of standard error are last words. The engine removes the character."""


def say_last_words(text: str) -> None:
    """Print why this process ends: an error, with its traceback if it has one."""
    sys.stderr.write("".join(f"{MARK}{line}\n" for line in text.rstrip().splitlines()))
    sys.stderr.flush()
