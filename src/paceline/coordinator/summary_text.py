"""The summary of a run as lines of text. `paceline run` and a script in one process print the same lines."""

from __future__ import annotations

from paceline.coordinator.json_numbers import shown, shown_in_column
from paceline.messages.status import RunSummary

_ALWAYS = ("steps", "samples", "seconds", "samples_per_s", "mode", "slots", "workers", "servers")


def summary_lines(summary: RunSummary) -> list[str]:
    """One line for each field that has something to say: its name, and its value in one column."""
    rows: dict[str, str] = {}
    for key in _ALWAYS:
        value = getattr(summary, key)
        rows[key] = f"{value:,.1f}" if isinstance(value, float) else str(value)
    for key, value in summary.metrics.items():
        step = summary.metric_steps.get(key)
        rows[key] = shown_in_column(value) + ("" if step is None else f" (step {step})")
    if summary.replicas:
        rows["replicas"] = str(summary.replicas)
    if summary.stopped:
        rows["stopped"] = summary.stopped
    if summary.best is not None:
        best = summary.best
        rows["best"] = f"{best.metric} {shown(best.value)} (version {best.version}, {best.folder})"
    for key in ("max_staleness", "skipped_slots", "wasted_slots", "lost_workers"):
        rows[key] = str(getattr(summary, key))
    if summary.bad_records:
        rows["bad_records"] = f"{summary.bad_records} (left out; `paceline audit` names them)"
    restarts = summary.restarts or {}
    if any(restarts.values()):
        rows["restarts"] = ", ".join(f"{count} {role}{'s' * (count != 1)}" for role, count in restarts.items() if count)
    if summary.failovers:
        rows["failovers"] = f"{summary.failovers} (at most {summary.failover_s:.1f} s without a commit)"
    if summary.rewinds:
        rows["rewinds"] = f"{summary.rewinds} ({summary.recomputed_steps} steps computed again)"
    if summary.data_wait_share >= 0.05 or summary.samplers:
        rows["data_wait"] = f"{summary.data_wait_s:,.1f} s ({summary.data_wait_share:.0%} of the time of workers)"
    if summary.samplers:
        rows["samplers"] = ", ".join(f"{s.name} {s.served} slots" + ", behind" * s.behind for s in summary.samplers)
    for number, line in enumerate(summary.plan):
        rows["dials" + " " * number] = line
    for key in ("checkpoint", "warning", "digest", "run"):
        if getattr(summary, key):
            rows[key] = getattr(summary, key)
    width = max(map(len, rows))
    lines = [*rows.items(), *(("warning", text) for text in summary.warnings)]
    return [f"{key:<{width}}  {text}" for key, text in lines]
