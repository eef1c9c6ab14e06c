"""The metrics are what the parser of Prometheus reads."""

from __future__ import annotations

import re
from math import isnan
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.kit.real_runs import ROOT

from paceline.coordinator.metrics_port import MetricsPort
from paceline.coordinator.metrics_text import metrics_text
from paceline.errors import UsageError
from paceline.messages.status import CheckpointStatus, SlowestSlot, SpeedStatus, Status

STATUS = Status(
    state="running",
    step=812,
    samples=4096,
    workers_alive=2,
    servers=("server-0",),
    logs={"loss": "nan", 'odd "name"\n': 0.5},
    metrics={"accuracy": 0.91},
    speeds=(SpeedStatus("worker-0", 0.25, 0.75),),
    slowest=SlowestSlot(812, 3, "worker-2", 4.1),
    checkpoint=CheckpointStatus("i0000-v0000000800", 800, 800, 12.5),
    stall="step 812 waits",
)


def read(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_parser_of_prometheus_reads_every_metric() -> None:
    found = read(metrics_text(STATUS))
    assert found["paceline_step", ""] == 812
    assert found["paceline_samples_total", ""] == 4096
    assert found["paceline_state", "running"] == 1
    assert found["paceline_state", "failed"] == 0
    assert found["paceline_metric", "accuracy"] == 0.91
    assert isnan(found["paceline_logged", "loss"])
    assert found["paceline_logged", 'odd "name"\n'] == 0.5
    assert found["paceline_worker_slot_s", "worker-0"] == 0.25
    assert found["paceline_slowest_slot_s", "worker-2"] == 4.1
    assert found["paceline_checkpoint_age_s", ""] == 12.5
    assert found["paceline_stalled", ""] == 1
    assert read(metrics_text(Status()))["paceline_stalled", ""] == 0


def test_the_port_serves_the_newest_status_and_a_port_in_use_is_named() -> None:
    port = MetricsPort("127.0.0.1", 0)
    try:
        port.publish(STATUS)
        with urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=5) as reply:
            assert read(reply.read().decode())["paceline_step", ""] == 812
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(f"http://127.0.0.1:{port.port}/other", timeout=5)
        refused.value.close()
        with pytest.raises(UsageError, match=f"--metrics-port {port.port}: cannot listen at 127.0.0.1"):
            MetricsPort("127.0.0.1", port.port)
    finally:
        port.close()


def test_alerts_and_the_dashboard_name_only_metrics_that_there_are() -> None:
    served = {name for name, _ in read(metrics_text(STATUS))}
    for file in ("prometheus-alerts.yaml", "grafana-dashboard.json"):
        named = set(re.findall(r"\bpaceline_\w+", (ROOT / "deploy" / file).read_text()))
        assert len(named) >= 6
        assert named <= served, file
