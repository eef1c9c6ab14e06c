"""Faults of messages as a campaign plans and counts them."""

from __future__ import annotations

import json
from pathlib import Path

from paceline import messages
from paceline.messages import PlacementRequest, PushAck
from paceline.runtime.fault_injection import plan_for_workers, read_counts, wrap
from paceline.transport.faulty import FaultPlan
from paceline.transport.inproc import InprocHub


def test_message_faults_are_counted_on_disk_so_that_a_kill_loses_none(tmp_path: Path) -> None:
    hub = InprocHub()
    server = hub.port("server-0/a", listen="here")
    plan = plan_for_workers(7, 1.0, 0.0, (0.0, 0.05), tmp_path / "counts")
    for start, node in enumerate(("worker-0/a", "worker-0/b"), 1):
        port = wrap(hub.port(node), plan, "worker-0", start)
        assert server.address is not None
        port.connect(server.address)
        while (event := port.recv(0.1)) is None:
            pass
        port.send(event.peer, PlacementRequest(1, 0))
        assert read_counts(tmp_path / "counts")["drop"] > 0, "the counts are on disk while the port is open"
        port.close()
    server.close()
    assert read_counts(tmp_path / "counts") == {"drop": 2}
    assert read_counts(tmp_path / "nothing") == {}


def test_every_message_type_of_the_plan_exists() -> None:
    fields = json.loads(plan_for_workers(1, 0.1, 0.2, (0.3, 0.05), Path("counts")))
    del fields["counts"]
    plan = FaultPlan.from_dict(fields)
    for table in (plan.drop, plan.duplicate, plan.delay, plan.recv_drop, plan.recv_duplicate, plan.recv_delay):
        for name in table:
            assert issubclass(getattr(messages, name), messages.Message)
    assert plan.drop["Push"] == 0.1
    assert plan.recv_delay[PushAck.__name__] == (0.3, 0.05)
