"""The status of a run in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from paceline.messages.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATES = ("waiting", "running", "finished", "failed")
_COUNTERS = {
    "failovers": "Times that a backup replaced a server.",
    "rewinds": "Times that the job went back to a checkpoint.",
    "recomputed_steps": "Steps that rewinds had computed again.",
    "lost_workers": "Workers that died or left.",
    "wasted_slots": "Slots that two workers computed, of which one counted.",
    "samples": "Samples that were applied.",
}
_GAUGES = {
    "step": "The lowest step that is not committed.",
    "version": "The last committed version.",
    "epoch": "The epoch of the current step.",
    "samples_per_s": "Samples per second, lately.",
    "workers_alive": "Workers that take part.",
    "max_staleness": "How many steps the model of a gradient lacked at most.",
}


def metrics_text(status: Status) -> str:
    """All metrics of a run, each with its help and type."""
    out: list[str] = []
    for name, help_ in _COUNTERS.items():
        _add(out, f"paceline_{name}_total", "counter", help_, [({}, float(getattr(status, name)))])
    for name, help_ in _GAUGES.items():
        _add(out, f"paceline_{name}", "gauge", help_, [({}, float(getattr(status, name) or 0))])
    _add(out, "paceline_servers", "gauge", "Parameter servers.", [({}, float(len(status.servers)))])
    states = [({"state": state}, float(status.state == state)) for state in _STATES]
    _add(out, "paceline_state", "gauge", "1 for the state of the job.", states)
    _add(out, "paceline_stalled", "gauge", "1 if the job makes no progress.", [({}, float(bool(status.stall)))])
    short = float(status.placement.short)
    _add(out, "paceline_blocks_short", "gauge", "Blocks with fewer copies than wanted.", [({}, short)])
    if status.checkpoint is not None and status.checkpoint.age_s is not None:
        age = status.checkpoint.age_s
        _add(out, "paceline_checkpoint_age_s", "gauge", "Age of the newest complete checkpoint.", [({}, age)])
    if (slot := status.slowest) is not None:
        late = [({"worker": slot.worker}, slot.seconds)]
        _add(out, "paceline_slowest_slot_s", "gauge", "Age of the slot for which the oldest step waits.", late)
    speeds = [({"worker": speed.name}, speed.seconds) for speed in status.speeds]
    _add(out, "paceline_worker_slot_s", "gauge", "Seconds of a worker for a slot, lately.", speeds)
    shares = [({"worker": speed.name}, speed.share) for speed in status.speeds]
    _add(out, "paceline_worker_share", "gauge", "Part of the slots that a worker has computed.", shares)
    for kind, values in (("logged", status.logs), ("metric", status.metrics)):
        help_ = "Values that the script logged." if kind == "logged" else "Results of validation."
        found = [({"name": name}, float(value)) for name, value in values.items()]
        _add(out, f"paceline_{kind}", "gauge", help_, found)
    return "\n".join(out) + "\n"


def _add(out: list[str], name: str, kind: str, help_: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
    lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    if lines:
        out += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}", *lines]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(value) if isfinite(value) else {"inf": "+Inf", "-inf": "-Inf"}.get(str(value), "NaN")
