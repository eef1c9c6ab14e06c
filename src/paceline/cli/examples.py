"""``paceline examples``."""

from __future__ import annotations

import ast
from pathlib import Path

import click

SCRIPTS = Path(__file__).parent / "example_scripts"
"""The folder of the example scripts, which are installed with the package."""


def example_file(name: str) -> Path:
    """The file of an example that is installed with the package."""
    return SCRIPTS / f"{name}.example"


@click.command("examples")
@click.argument("names", nargs=-1)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), default=Path(), help="Where to copy them.  [default: here]"
)
def command(names: tuple[str, ...], folder: Path) -> None:
    """List the examples, or copy those called NAMES as Python files. A file that exists is not replaced."""
    from paceline.errors import UsageError

    known = {file.stem: file for file in sorted(SCRIPTS.glob("*.example"))}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no example {name!r}: choose from {', '.join(known)}")
        if (folder / f"{name}.py").exists():
            raise UsageError(f"{folder / f'{name}.py'} exists: remove it, or choose another folder with --dir")
    if not names:
        width = max(map(len, known))
        for name, file in known.items():
            click.echo(f"{name:<{width}}  {_about(file)}")
        click.echo(f"`paceline examples {next(reversed(known))}` copies one to this directory")
    for name in names:
        _copy(known[name], folder / f"{name}.py")


def _about(file: Path) -> str:
    """The first line of the docstring of a script."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _copy(file: Path, to: Path) -> None:
    from paceline.errors import UsageError

    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {to}: {error.strerror} (choose another folder with --dir)") from None
    click.echo(f"{to}: try `python {to}`, or `paceline run -w 2 {to}`")
