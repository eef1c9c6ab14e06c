"""Runs several scripts one after the other, each in a fork of a process that has loaded torch and Paceline.

``python warm_python.py FOLDER SCRIPT…`` runs each script in FOLDER, as ``python SCRIPT`` would, and prints one line of
JSON with its exit code, its output and its seconds. Loading torch takes longer than most of these scripts.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback


def run_forked(script: str) -> dict[str, object]:
    """Run one script; returns how it ended."""
    began = time.monotonic()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os._exit(_main(script))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        printed = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"script": script, "code": code, "printed": printed, "seconds": time.monotonic() - began}


def _main(script: str) -> int:
    from paceline.runtime import current_job

    sys.argv = [script]
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    current_job.close(failed=bool(code))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    import paceline

    _ = paceline.join, paceline.Job
    from paceline.runtime import embedded  # noqa: F401

    os.chdir(sys.argv[1])
    sys.path[0] = ""
    for name in sys.argv[2:]:
        print(json.dumps(run_forked(name)), flush=True)
