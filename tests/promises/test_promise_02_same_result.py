"""Promise 2: in lock-step the result does not depend on who did the work.

For fixed `slots` the final weights are bit-identical for any number of workers and servers, and equal to one plain
PyTorch process that follows rule 11 (`tests.kit.reference_training`).
Upheld by: `blocks.sums` (slot order), `blocks.torch_optimizers` and `blocks.flat_optimizers`, `core.sampling`, and
`worker.binding` (each slot starts from the version's buffers and its own seed).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kit.real_runs import TRAIN_CASE, cold, python, train
from tests.kit.training_cases import CASES

pytestmark = pytest.mark.real_run

Results = dict[str, dict[str, Any]]
COMPARED = [name for name in CASES if name not in ("counts", "norm-long")]  # the other cases are for promises 1 and 6


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of every case in plain PyTorch, in a process without Paceline."""
    with cold():
        done = python("-m", "tests.kit.reference_training", *COMPARED, cwd=tmp_path_factory.mktemp("reference")).check()
    results: Results = json.loads(done.lines[-1])
    return results


@pytest.fixture(scope="module")
def embedded_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(scope="module")
def embedded(embedded_dir: Path) -> Results:
    """The results of every case, one after another in one process."""
    done = python(TRAIN_CASE, "--dir", "runs", *COMPARED, cwd=embedded_dir).check()
    return done.results()[0]


@pytest.mark.parametrize("case", [name for name in COMPARED if CASES[name].clip_norm is None])
def test_one_process_equals_plain_pytorch(case: str, reference: Results, embedded: Results) -> None:
    assert embedded[case]["digest"] == reference[case]["digest"]
    assert embedded[case]["steps"] == reference[case]["steps"]


def test_pushes_during_backward_do_not_change_the_result(reference: Results, tmp_path: Path) -> None:
    """The script may leave its gradients alone, clip them, or compute none for a layer."""
    done = python(TRAIN_CASE, *COMPARED, cwd=tmp_path, PACELINE_OVERLAP="1").check()
    digests = {name: result["digest"] for name, result in done.results()[0].items()}
    compared = [name for name in COMPARED if CASES[name].clip_norm is None]
    assert {name: digests[name] for name in compared} == {name: reference[name]["digest"] for name in compared}


def test_the_cases_differ_in_what_they_are_meant_to_show(reference: Results) -> None:
    digests = {name: result["digest"] for name, result in reference.items()}
    assert digests["nested"] == digests["sgd"], "a nested epoch loop is one loop of several epochs"
    assert len(set(digests.values())) == len(digests) - 1
    absent = set(reference["unused"]["absent"])
    assert "never.weight step" in absent
    assert "rare.weight step" in absent, "no step was without the parameter"
    alone = {f"rare.weight slot {slot}" for slot in range(4)}
    assert absent & alone, "no slot was without the parameter"
    assert len(absent & alone) == 4


def test_clip_norm_equals_plain_clipping_to_rounding(reference: Results, embedded: Results) -> None:
    assert embedded["clipped"]["norm"] == pytest.approx(reference["clipped"]["norm"], rel=1e-6)
    assert embedded["clipped"]["norm"] != pytest.approx(reference["sgd"]["norm"], rel=1e-3), "nothing was clipped"


def test_an_embedded_run_leaves_a_summary_with_its_digest(embedded: Results, embedded_dir: Path) -> None:
    summary = json.loads((embedded_dir / "runs" / "sgd" / "summary.json").read_text())
    assert summary["digest"] == embedded["sgd"]["digest"]
    assert summary["steps"] == 12
    assert summary["samples"] == 3 * 203


@pytest.mark.parametrize(
    ("case", "workers", "servers", "overlap"),
    [
        ("sgd", 1, 1, "0"),
        ("sgd", 2, 2, "0"),
        ("sgd", 3, 3, "1"),
        ("adamw", 2, 2, "0"),
        ("epochs", 2, 2, "1"),
        ("unused", 2, 2, "1"),
        ("slot-clip", 2, 2, "1"),
    ],
)
def test_a_cluster_equals_plain_pytorch(
    case: str, workers: int, servers: int, overlap: str, reference: Results, tmp_path: Path
) -> None:
    # The jitter makes slots arrive in any order.
    options = ["-w", str(workers), "-s", str(servers), "--slots", "4"]
    trained = train(tmp_path, options, case, "--jitter", "0.02", PACELINE_OVERLAP=overlap)
    assert trained.digest == reference[case]["digest"]
    assert trained.summary["steps"] == reference[case]["steps"]
    assert trained.summary["max_staleness"] == 0
    results = [result[case] for result in trained.ended.results()]
    assert len(results) == workers
    assert {tuple(r["lr"]) for r in results} == {tuple(results[0]["lr"])}


def test_ssp_0_equals_lock_step_with_one_slot(reference: Results, tmp_path: Path) -> None:
    trained = train(tmp_path, ["-w", "2", "-s", "1", "--mode", "ssp:0"], "one-slot", "--slots", "1")
    assert trained.summary["mode"] == "ssp:0"
    assert trained.digest == reference["one-slot"]["digest"]
    assert "warning: 2 workers, but only 1 slot can be computed at once" in trained.ended.out
