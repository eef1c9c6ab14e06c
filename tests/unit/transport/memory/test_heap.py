"""Freed memory is reused for frames that come by TCP."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from paceline.transport.memory.heap import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * (1 << 20) for _ in range(64)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.parametrize(("how", "least", "most"), [("keep", 0, 500), ("default", 8000, 40_000)])
def test_blocks_in_reused_memory_cost_no_page_faults(how: str, least: int, most: int) -> None:
    """64 MB, freed and allocated again. The second case is the default of the C library."""
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, timeout=60, check=True)
    assert least <= int(done.stdout) <= most
