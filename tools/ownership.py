"""Find statements that change what another module owns.

    python tools/ownership.py [PATH] [MODULE ...]     one line per violation; PATH is src/paceline

An attribute is owned by the module of its class. In the rooms of core, a module may assign an attribute, or change in
place what it holds (`x.a[k] =`, `del x.a[k]`, `x.a.append(…)`), only if the class of `x` is defined in the same module,
or if the function has made `x` itself. State that is inherited from another module's class is not owned either. A shell
(coordinator, server, worker, sim) may change nothing that belongs to a class of core.

A call of a method that the owner defines is no violation, whatever its name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.source import Source, Write

CORES = ("core/",)
SHELLS = ("coordinator/", "server/", "worker/", "sim/", "runtime/", "engines/")


def violations(source: Source, module: str) -> list[Write]:
    """The writes of `module` that belong elsewhere."""
    if module.startswith(CORES):
        return [write for write in source.writes(module) if _is_foreign(source, write)]
    if module.startswith(SHELLS):
        return [write for write in source.writes(module) if _is_of_core(write)]
    return []


def _is_foreign(source: Source, write: Write) -> bool:
    if write.fresh:
        return False
    if write.owner is not None:
        return write.owner.module != write.module
    return not any(write.attribute in info.fields for info in source.classes[write.module].values())


def _is_of_core(write: Write) -> bool:
    if write.owner is not None:
        return write.owner.module.startswith(CORES) and not write.fresh
    return ".core." in write.path or write.path.startswith("core.")


def main() -> None:
    """Print the violations of the modules that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("path", nargs="?", default="src/paceline", help="the package's directory")
    parser.add_argument("modules", nargs="*", help="beginnings of paths below it: core/server core/worker")
    given = parser.parse_args()
    source = Source(Path(given.path))
    for module in source.trees:
        if not given.modules or module.startswith(tuple(given.modules)):
            for write in violations(source, module):
                print(write)


if __name__ == "__main__":
    main()
