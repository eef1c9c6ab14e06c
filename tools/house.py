"""Count what makes a source tree hard to change: shared state, late binding, and sizes.

    python tools/house.py [PATH]            a table with the offenders; PATH is src/paceline of some commit
    python tools/house.py [PATH] --json     the same as JSON

- shared: attributes of the coordinator's state that two or more modules assign or change in place,
- late: attributes of a class in core that another module assigns a function to,
- files over 400 lines, functions over 60 lines, classes over 25 methods (properties count).

The coordinator's state is every class that the coordinator's core uses: the modules of core that
core/coordinator/dispatch.py imports, directly or not (core/coordinator.py on older commits).
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.source import Source

MAX_FILE, MAX_FUNCTION, MAX_METHODS = 400, 60, 25
_COORDINATOR = ("core/coordinator/dispatch.py", "core/coordinator.py")


def coordinator_modules(source: Source) -> set[str]:
    """The modules of core that the coordinator's core imports, directly or not."""
    todo = [next(name for name in _COORDINATOR if name in source.trees)]
    found: set[str] = set()
    while todo:
        module = todo.pop()
        if module not in found and module.startswith("core/"):
            found.add(module)
            todo += source.imports(module)
    return found


def shared(source: Source) -> dict[str, list[str]]:
    """Attributes of the coordinator's state with the modules that write them, where there are two or more."""
    modules = coordinator_modules(source)
    writers: dict[str, set[str]] = defaultdict(set)
    for module in source.trees:
        for write in source.writes(module):
            if write.owner is not None and write.owner.module in modules and not write.fresh:
                writers[f"{write.owner.name}.{write.attribute}"].add(module)
    return {name: sorted(found) for name, found in sorted(writers.items()) if len(found) > 1}


def late(source: Source) -> dict[str, str]:
    """Attributes of classes in core that get a function from another module, with where."""
    found: dict[str, str] = {}
    for module in source.trees:
        for write in source.late_callables(module):
            if write.owner is not None and write.owner.module.startswith("core/"):
                found.setdefault(f"{write.owner.name}.{write.attribute}", f"{write.module}:{write.line}")
    return found


def long_files(source: Source) -> dict[str, int]:
    """Files over the limit, with their lines."""
    return {module: lines for module, lines in source.lines.items() if lines > MAX_FILE}


def long_functions(source: Source) -> dict[str, int]:
    """Functions over the limit, with their lines."""
    return {name: lines for name, lines in _functions(source) if lines > MAX_FUNCTION}


def _functions(source: Source) -> Iterator[tuple[str, int]]:
    for module, tree in source.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                yield f"{module}:{node.name}", node.end_lineno - node.lineno + 1


def large_classes(source: Source) -> dict[str, int]:
    """Classes over the limit, with the number of their methods."""
    return {
        f"{module}:{name}": len(info.methods)
        for module, classes in source.classes.items()
        for name, info in classes.items()
        if len(info.methods) > MAX_METHODS
    }


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("path", nargs="?", default="src/paceline", help="the package's directory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    source = Source(Path(given.path))
    found: dict[str, dict[str, list[str]] | dict[str, str] | dict[str, int]] = {
        "attributes of coordinator state written from two or more modules": shared(source),
        "callables bound late in core": late(source),
        f"files over {MAX_FILE} lines": long_files(source),
        f"functions over {MAX_FUNCTION} lines": long_functions(source),
        f"classes over {MAX_METHODS} methods": large_classes(source),
    }
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for label, offenders in found.items():
        print(f"{len(offenders):4}  {label}")
        for name, where in offenders.items():
            print(f"        {name}: {', '.join(where) if isinstance(where, list) else where}")


if __name__ == "__main__":
    main()
