"""Shows the line that a script should have: its own `for` line, over `job.batches(...)`."""

from __future__ import annotations

import ast
import linecache
import sys
from types import FrameType

_WRAPPERS = ("enumerate", "tqdm")
_DEFAULT = "for x, y in job.batches(loader, slots=4):"


def line_to_write() -> str:
    """The `for` line around the current call of the script, over `job.batches(...)`; an example if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        line = None if _is_of_library(frame) else _rewritten(frame)
        if line is not None:
            return line
        frame = frame.f_back
    return _DEFAULT


def _is_of_library(frame: FrameType) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in ("paceline", *sys.stdlib_module_names) or "-packages" in frame.f_code.co_filename


def _rewritten(frame: FrameType) -> str | None:
    """The innermost `for` line of `frame` around its current line, rewritten; None if no such line is over data."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except (SyntaxError, ValueError):
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and node.lineno <= frame.f_lineno <= (node.end_lineno or 0)
    ]
    for loop in sorted(around, key=lambda node: node.lineno, reverse=True):
        data = ast.unparse(loop.iter)
        if data.startswith("range(") or ".batches(" in data:
            continue
        return f"for {_target(loop.target)} in {ast.unparse(_over_batches(loop.iter))}:"
    return None


def _target(target: ast.expr) -> str:
    text = ast.unparse(target)
    return text[1:-1] if isinstance(target, ast.Tuple) and text.startswith("(") else text


def _over_batches(data: ast.expr) -> ast.expr:
    """``job.batches(data, slots=4)``, inside of `enumerate` and progress bars, which stay around it.

    It has `slots`, since they are part of the result.
    """
    if isinstance(data, ast.Call) and data.args and ast.unparse(data.func).rpartition(".")[2] in _WRAPPERS:
        return ast.Call(data.func, [_over_batches(data.args[0]), *data.args[1:]], data.keywords)
    return ast.Call(ast.Attribute(ast.Name("job"), "batches"), [data], [ast.keyword("slots", ast.Constant(4))])


def in_loop_text(call: str) -> str:
    """The error for a `call` on the job that a loop does not allow."""
    return (
        f"{call}() is refused inside of a loop over job.batches(...): call it before or after the loop. To call it "
        "every N steps, write a loop for each N steps: `for batch in job.batches(..., steps=N)`, and the call after "
        "it. A loop that was left by break counts as left only if nothing keeps its iterator: close the one that you "
        "keep (it.close())"
    )
