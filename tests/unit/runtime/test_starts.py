"""Starts of a name are numbered once, by every process that starts roles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.real_runs import python

from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import next_start


def test_each_name_has_its_own_growing_start_numbers(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert [next_start(run, "worker-0") for _ in range(3)] == [1, 2, 3]
    assert next_start(run, "server-0") == 1
    assert next_start(RunDir(tmp_path), "worker-0") == 4, "a resumed launcher continues the numbers"


def test_two_processes_never_get_the_same_number(tmp_path: Path) -> None:
    take = (
        "import pathlib, sys\n"
        "from paceline.runtime.rundir import RunDir\n"
        "from paceline.runtime.starts import next_start\n"
        "print(*(next_start(RunDir(pathlib.Path(sys.argv[1])), 'worker-0') for _ in range(50)))\n"
    )
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda _: python("-c", take, str(tmp_path), cwd=tmp_path, timeout_s=60), range(3)))
    numbers = [int(word) for e in ended for word in e.check().out.split()]
    assert sorted(numbers) == list(range(1, 151))
