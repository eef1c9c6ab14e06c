"""Promise 1: every slot below the committed watermark is applied to every block exactly once, in every mode.

`paceline audit` proves it for a run. The simulator checks it in every schedule (`sim.checks`, tests/unit/sim).
Upheld by: `core.server.attempts` (one attempt a slot), `core.coordinator.gate` and `core.coordinator.commits`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.checked_runs import check_once, commits_of, summary_of, workers_of
from tests.kit.real_runs import PACELINE, Trained, run, train

pytestmark = pytest.mark.real_run
FAULTS = {"seed": 5, "duplicate": {"Push": 0.1}, "recv_drop": {"PushAck": 0.2}}


def train_with_faults(cwd: Path, mode: str, case: str, *options: str, turn_s: float) -> Trained:
    """10 % of pushes arrive twice, 20 % are retried, 5 % of turns end after a partial push; a worker dies in one.

    A push is retried after a second or two. Turns take `turn_s`, so that the run lasts longer than that.
    """
    sleep = json.dumps({f"worker-{n}": turn_s for n in range(2)})
    trained = train(
        cwd,
        ["-w", "2", "-s", "2", "--mode", mode],
        *(case, "--sleep", sleep, "--abandon", "0.05", "--die-at", json.dumps({"worker-1": 20}), *options),
        PACELINE_FAULTS=json.dumps(FAULTS),
    )
    assert trained.summary["lost_workers"] == 1
    fired: dict[str, int] = {}
    for worker in workers_of(trained):
        for name, count in worker["fired"].items():
            fired[name] = fired.get(name, 0) + count
    assert fired["duplicate:Push"] > 20
    assert fired["recv_drop:PushAck"] > 20
    assert fired["retried"] > 10
    assert fired["abandoned"] > 5
    return trained


@pytest.mark.parametrize(("mode", "slots"), [("ssp:2", 1), ("asp", 1), ("ssp:1", 2)])
def test_every_slot_counts_once_when_pushes_fail(mode: str, slots: int, tmp_path: Path) -> None:
    trained = train_with_faults(tmp_path, mode, "counts", "--epochs", "8", "--slots", str(slots), turn_s=0.01)
    check_once(trained, 8, slots)


def test_lock_step_keeps_its_digest_when_pushes_fail(tmp_path: Path) -> None:
    trained = train_with_faults(tmp_path, "bsp", "norm-long", turn_s=0.03)
    commits = commits_of(trained)
    assert [c.step for c in commits] == list(range(-1, 80))
    summary_of(trained.ended, tmp_path, "norm-long")
    run([*PACELINE, "audit", "run"], tmp_path).check()
