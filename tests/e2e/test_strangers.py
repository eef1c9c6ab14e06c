"""Strangers at the ports of a real run: they cost it little memory, and its result is that of an undisturbed run."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.kit.checked_runs import summary_of
from tests.kit.real_runs import TRAIN_CASE, live

from paceline.testing.launch import listening
from paceline.testing.strangers import Strangers

MB = 1e6
SLEEP = json.dumps({"worker-0": 0.7, "worker-1": 0.7})


def test_a_hundred_strangers_cost_a_run_less_than_50_mb_and_change_nothing(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "-s", "2", "--seed", "7"], TRAIN_CASE, "norm", "--sleep", SLEEP) as running:
        version = running.until_version(2).version
        roles = running.roles().values()
        ports = sorted(listening(roles))
        assert len(ports) == 6, "the coordinator and both servers listen, for sessions and for their streams"
        usual = sum(role.memory_info().rss for role in roles)
        with Strangers(ports, 100) as strangers:
            poured, deadline = False, time.monotonic() + 20.0
            while not poured and time.monotonic() < deadline:
                poured = strangers.pour(0.2)
                grown = sum(role.memory_info().rss for role in roles) - usual
                assert grown < 50 * MB
            assert poured
            running.until_version(version + 1)
        running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert (summary["rewinds"], summary["generations"], summary["lost_workers"]) == (0, 1, 0)
