"""The process of one role: ``python -m paceline.runtime.role_process PARENT NAME FILE``, started by an engine.

FILE has the `RoleSpec`, the whole configuration of the role. PARENT is the pid of the process that the role must not
outlive. NAME is not used; it is seen in lists of processes.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path

from paceline.config.role_spec import decode_role_spec
from paceline.orphans import die_with_parent
from paceline.runtime.exit_codes import EXIT_SCRIPT
from paceline.runtime.last_words import say_last_words
from paceline.runtime.roles import role_named
from paceline.telemetry import logs, tracing

logger = logging.getLogger("paceline.runtime.role_process")  # because __name__ is "__main__" here


def main(argv: list[str]) -> int:
    """Run a role from its start to its end; returns the exit code."""
    parent, _, file = argv
    die_with_parent(int(parent))
    spec = decode_role_spec(Path(file).read_bytes())
    log = spec.shared.log
    logs.set_up(log.level, log.format, process=spec.name, start=spec.start)
    if spec.shared.trace is not None:
        tracing.start(spec.name, Path(spec.shared.trace), spec.shared.host_name)
    logger.info("%s begins: start %d, process %d", spec.name, spec.start, os.getpid())
    try:
        code = role_named(spec.role).run(spec)
    except Exception:
        say_last_words(traceback.format_exc())
        code = EXIT_SCRIPT
    logger.info("%s ends with exit code %d", spec.name, code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
