"""The status and the summary as JSON: fields keep their names, and readers accept what they do not know."""

from __future__ import annotations

import msgspec

from paceline.messages.status import CheckpointStatus, PlacementStatus, RunSummary, Status

STATUS_FIELDS = (
    "run state headline advice mode step end_step version epoch end_epoch samples samples_per_s slowest unfinished "
    "logs metrics metric_steps validating workers_alive workers servers wanted_workers wanted_servers replicas "
    "placement draining drained failovers failover_s cuts changes processes pid max_staleness lost_workers "
    "wasted_slots generation incarnation rewinds recomputed_steps rewinding checkpoint warning failure warnings "
    "draining_hosts drained_hosts unequal slots plan speeds best stop_reason stall late_process"
)
SUMMARY_FIELDS = (
    "run state stopped steps samples seconds samples_per_s mode slots slot_batch workers servers replicas seed threads "
    "metrics metric_steps max_staleness max_lag skipped_slots wasted_slots lost_workers generations incarnation "
    "rewinds recomputed_steps failovers failover_s checkpoint warning digest warnings unequal plan "
    "bad_records stop_reason best data_wait_s data_wait_share samplers"
)


def test_the_fields_of_the_status_keep_their_names() -> None:
    assert set(STATUS_FIELDS.split()) <= set(msgspec.json.decode(msgspec.json.encode(Status())))


def test_the_fields_of_the_summary_keep_their_names_and_a_coordinator_leaves_out_restarts() -> None:
    assert list(msgspec.json.decode(msgspec.json.encode(RunSummary()))) == SUMMARY_FIELDS.split()
    with_restarts = RunSummary(restarts={"worker": 1})
    assert msgspec.json.decode(msgspec.json.encode(with_restarts))["restarts"] == {"worker": 1}


def test_a_status_survives_the_wire() -> None:
    status = Status(
        step=3,
        logs={"loss": 0.5, "grad": "nan"},
        placement=PlacementStatus(1, 2, {"server-0": (2, 0)}),
        checkpoint=CheckpointStatus("i0000-v0000000003", 3, 3),
    )
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status


def test_a_status_with_unknown_and_without_known_fields_is_read() -> None:
    assert msgspec.json.decode(b'{"step": 2, "of_a_later_version": 1}', type=Status) == Status(step=2)
