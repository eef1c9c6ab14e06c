"""Reads what an audit compares, the log and the manifests of the checkpoints of a run, and formats the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from paceline.checkpoint.manifest import Listed, list_checkpoints
from paceline.checkpoint.storage import Storage
from paceline.coordinator.reader import LogReader
from paceline.core.audit.audit import audit
from paceline.core.audit.findings import LISTED, CheckpointRecord, Report
from paceline.errors import StateError


def audit_run(log: Path, storage: Storage) -> tuple[Report, list[Listed]]:
    """Audit a running or ended run. Return the report, and the checkpoints that cannot be compared with the log.

    Raises:
        StateError: there is no log, this version of Paceline cannot read it, or the checkpoints cannot be listed.
    """
    try:
        # List the checkpoints before the log is read: a commit is in the log before its checkpoint is complete, so
        # the log then has the commits of every listed checkpoint.
        found = list_checkpoints(storage, verify=False)
    except OSError as error:
        raise StateError(f"cannot list the checkpoints in {storage.url}: {error.strerror or error}") from error
    checkpoints = [
        CheckpointRecord(c.folder, c.manifest.position, c.manifest.chains) for c in found if c.manifest is not None
    ]
    with LogReader(log) as reader, reader.snapshot():
        report = audit(reader.facts(), reader.each_commit(), checkpoints)
    return report, [listed for listed in found if listed.manifest is None]


def report_json(report: Report, passed_over: list[Listed], run: str) -> dict[str, object]:
    """The report as values for JSON: counts by name; each problem as a line in `problems`, in fields in `where`."""
    return {
        "run": run,
        "ok": report.ok,
        **asdict(report.counts),
        "begun": [{"epoch": epoch, "samples": samples} for epoch, samples in report.begun],
        "problems": [f"{p.kind}: {p.detail}" for p in report.problems],
        "omitted": report.omitted,
        "where": [{"kind": p.kind, **p.where} for p in report.problems],
        "bad_records": report.bad_records,
        "not_compared": {listed.folder: listed.problem for listed in passed_over},
    }


def report_lines(report: Report, passed_over: list[Listed]) -> list[str]:
    """The report as lines for people: the counts, then what was proved or the list of problems."""
    counts = report.counts
    made = f"{_n(counts.steps, 'step')} of {_n(counts.slots, 'slot')} and {_n(counts.samples, 'sample')}"
    again = f", {_n(counts.recomputed, 'commit')} computed again" if counts.recomputed else ""
    lines = [f"{made}; {_n(counts.incarnations, 'incarnation')}{again}; {_n(counts.segments, 'segment')} of the plan"]
    if report.ok:
        left_out = f" but the {_n(counts.left_out, 'sample')} that drop_last left out" if counts.left_out else ""
        whole = [f"each sample of {_n(counts.epochs, 'epoch')}{left_out}"] if counts.epochs else []
        begun = [f"the first {samples:,} of epoch {epoch}" for epoch, samples in report.begun]
        lines.append(f"applied exactly once: {', '.join(whole + begun) or 'nothing yet'}")
        agree = f"{_n(counts.checkpoints, 'checkpoint')} agree{'s' * (counts.checkpoints == 1)} with the log"
        lines.append(agree if counts.checkpoints else "no checkpoint to compare the log with")
    else:
        lines += [f"- {p.kind}: {p.detail}" for p in report.problems]
        lines += [f"- {kind}: and {more:,} more" for kind, more in report.omitted.items()]
        lost = f"{_n(counts.lost_commits, 'commit')} and {_n(counts.lost_slots, 'slot')} lost"
        lines.append(f"{lost}, {_n(counts.duplicate_slots, 'slot')} applied more than once")
    if counts.empty_slots:
        lines.append(f"without a gradient, and so with weight 0: {_n(counts.empty_slots, 'slot')}")
    if report.bad_records:
        lines.append(f"left out as bad, and so with weight 0: {_n(counts.bad_samples, 'sample')} so far")
        lines += [f"- {record}" for record in report.bad_records[:LISTED]]
        if more := len(report.bad_records) - LISTED:
            lines += [f"- and {more:,} more"] * (more > 0)
    lines += [f"not compared: {listed.folder}: {listed.problem}" for listed in passed_over]
    return lines


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
