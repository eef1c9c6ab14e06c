"""Short runs of the benchmarks: their JSON is complete, and the memory of a run does not grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kit.real_runs import ROOT, python

BENCH = ROOT / "bench"
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("cold")]


def _run(name: str, cwd: Path, *arguments: str, timeout_s: float = 290.0) -> dict[str, Any]:
    options = ["--quick", "--rounds", "1", "--json", "out.json", "--no-plot", *arguments]
    python(BENCH / f"{name}.py", *options, cwd=cwd, timeout_s=timeout_s).check()
    document: dict[str, Any] = json.loads((cwd / "out.json").read_text())
    return document


def test_the_sync_benchmark_writes_complete_json(tmp_path: Path) -> None:
    document = _run("sync", tmp_path, "--only", "copy", "gloo", "shm", "floor")
    ratios = document["ratios"]
    for name in ("shm_over_gloo", "tcp_over_gloo", "shm_over_memory_limit", "shm_over_floor", "tcp_over_floor"):
        assert list(ratios[name]) == ["0.25", "25", "100", "400"]
        assert ratios[name]["25"] is None, "this size was not measured"
    assert ratios["shm_over_gloo"]["0.25"] > 0
    assert ratios["shm_over_memory_limit"]["0.25"] > 1, "a step takes longer than the memory limit"
    assert ratios["shm_over_floor"]["0.25"] > 1, "a step takes longer than its parts"
    assert ratios["tcp_over_floor"]["0.25"] is None
    assert ratios["tcp_push_pull_gb_per_s"] is None
    assert document["failures"] == []
    assert document["rounds"] == 1
    figure = document["figures"]["shm_2_0.25"]
    assert (figure["unit"], figure["x"]) == ("ms", 0.25)
    assert figure["min"] == figure["median"] == figure["max"] == figure["values"][0]


@pytest.mark.timeout(600)  # on a busy machine, 2,000 steps took 176 s, and the run may be twice as long
def test_the_memory_of_a_run_does_not_grow_over_two_thousand_steps(tmp_path: Path) -> None:
    document = _run("leak", tmp_path, timeout_s=590.0)
    assert document["grew"] == [], document["growth"]
    assert len(document["samples"]) >= 9
    assert document["samples"][-1]["step"] > 1_700
