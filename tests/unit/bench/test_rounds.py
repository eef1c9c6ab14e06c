"""Rounds continue without a contender that fails, and keep all measurements."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit.bench_modules import load

figures, harness, tables = load("figures"), load("harness"), load("tables")


def _results(path: Path | None = None) -> Any:
    labels = {key: harness.Label(group="all", name=key, unit="ms") for key in ("a", "b", "c")}

    def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
        return {"a_over_b": figures.ratio(values.get("a", []), values.get("b", []))}

    return harness.Results("some", labels, {"a_over_b": "≤ 0.35"}, ratios, path)


def _order(seen: list[str]) -> dict[str, Callable[[], dict[str, float]]]:
    def contender(name: str, value: float) -> Callable[[], dict[str, float]]:
        def run() -> dict[str, float]:
            seen.append(name)
            return {name: value * len(seen)}

        return run

    return {name: contender(name, value) for name, value in (("a", 1.0), ("b", 3.0))}


def test_every_second_round_runs_the_contenders_in_reverse_order() -> None:
    seen: list[str] = []
    results = _results()
    harness.run_rounds(results, _order(seen), 3)
    assert "".join(seen) == "abbaab"
    assert results.plain() == {"a": [1.0, 4.0, 5.0], "b": [6.0, 9.0, 18.0]}
    document = results.document()
    assert document["ratios"] == {"a_over_b": pytest.approx(4 / 9)}
    assert [one["a_over_b"] for one in document["ratios_by_round"]] == pytest.approx([1 / 6, 4 / 9, 5 / 18])
    assert document["figures"]["b"] | {"values": None} == {
        "group": "all", "name": "b", "unit": "ms", "x": None, "median": 9.0, "min": 6.0, "max": 18.0, "values": None,
    }  # fmt: skip


def test_a_contender_that_fails_is_named_and_the_others_continue(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "some.json"
    results = _results(path)
    calls: list[int] = []

    def fails() -> dict[str, float]:
        if calls:
            kept = json.loads(path.read_text())
            assert kept["figures"]["a"]["values"], "the earlier measurements are on disk already"
        calls.append(1)
        raise harness.ContenderError("boom")

    harness.run_rounds(results, {**_order([]), "c": fails}, 4)
    assert len(calls) == harness.GIVE_UP_AFTER
    document = json.loads(path.read_text())
    assert document["rounds"] == 4
    assert len(document["figures"]["a"]["values"]) == len(document["figures"]["b"]["values"]) == 4
    assert document["failures"] == [{"contender": "c", "round": n, "error": "boom"} for n in (1, 2)]
    assert tables.finish(document, None) == 1
    assert "**Failed**: c in round 2: boom" in tables.section(document)


def test_a_hung_process_is_killed_and_its_output_is_kept(tmp_path: Path) -> None:
    script = "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); print('here I hang', os.getpid(), "
    script += "flush=True); time.sleep(60)"
    pids: list[int] = []
    began = time.monotonic()
    with pytest.raises(harness.ContenderError, match=r"has not ended after 1 s(.|\n)*here I hang"):
        harness.run_together(
            [([sys.executable, "-c", script], harness.environment())], timeout_s=1.0, meanwhile=pids.extend
        )
    assert time.monotonic() - began < 20
    assert pids
    assert not psutil.pid_exists(pids[0])


def test_the_peers_of_a_failed_process_are_killed() -> None:
    env = harness.environment()
    commands = [
        ([sys.executable, "-c", "import time; time.sleep(60)"], env),
        ([sys.executable, "-c", "raise SystemExit('no luck')"], env),
    ]
    with pytest.raises(harness.ContenderError, match=r"exit code 1(.|\n)*no luck"):
        harness.run_together(commands, timeout_s=30.0)


def test_contenders_do_not_inherit_paceline_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_LANE", "tcp")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert not {"PACELINE_LANE", "OMP_NUM_THREADS"} & set(harness.environment())
    assert harness.environment(PACELINE_LANE="tcp")["PACELINE_LANE"] == "tcp"


def test_missing_marks_of_a_process_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "worker-0.marks.json").write_text("[[0, 1.5]]")
    assert harness.read_marks(tmp_path, 1) == {"worker-0": [(0, 1.5)]}
    with pytest.raises(harness.ContenderError, match="1 of 2"):
        harness.read_marks(tmp_path, 2)
