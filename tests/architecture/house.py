"""The package and small snippets as `tools.source` sees them, and tables that may only shrink."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from textwrap import dedent

from tools.source import Source

ROOT = Path(__file__).parents[2]


@cache
def package() -> Source:
    """Return the source of the package paceline."""
    return Source(ROOT / "src" / "paceline")


def snippet(folder: Path, **modules: str) -> Source:
    """Write a package of small modules (`core__a="…"` is core/a.py) and return its source."""
    for name, text in modules.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return Source(folder)


def check_table(found: Mapping[str, object], allowed: Mapping[str, object]) -> None:
    """Fail if `found` is not exactly what is allowed: also when it is less, so that the table shrinks."""
    new = {name: what for name, what in found.items() if allowed.get(name) != what}
    mended = sorted(set(allowed) - set(found))
    assert not new, f"not allowed, or not up to date in the table of exceptions: {new}"
    assert not mended, f"no longer found: remove from the table of exceptions: {mended}"
