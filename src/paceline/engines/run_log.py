"""The events of a run as lines, and its metrics as tables."""

from __future__ import annotations

import csv
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from paceline.coordinator.reader import LogReader
from paceline.coordinator.records import START, Record, derive
from paceline.engines.run_figures import metric_rows
from paceline.errors import StateError, UsageError
from paceline.runtime.rundir import RunDir

_POLL_S = 0.5
_COLUMNS = ("kind", "incarnation", "version", "step", "name", "value")


def follow_records(run: RunDir, kinds: Collection[str] = (), *, as_json: bool, follow: bool) -> Iterator[str]:
    """Yield a line for each event of the run; with `follow`, until the run has ended.

    Raises:
        UsageError: there are none.
        StateError: there is no log, or it is damaged.
    """
    place, going_on = START, True
    while going_on:
        going_on = follow and run.launched
        with LogReader(run.log_file) as reader, reader.snapshot():
            records, place = derive(reader, place)
        if place == START and not going_on:
            raise UsageError(
                f"{run.path} has no events: nothing has happened yet, or it was run by Paceline 0.5 or older, whose "
                "log has no times"
            )
        for record in records:
            if not kinds or record.kind in kinds:
                yield msgspec.json.encode(record).decode() if as_json else line_of(record)
        if going_on:
            time.sleep(_POLL_S)


def line_of(record: Record) -> str:
    """An event for people: its time on this machine, its kind, and what happened."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at))
    return f"{at}  {record.kind:<10}  {record.text}"


def write_csv(run: RunDir, file: Path) -> int:
    """Write all metrics of a run as CSV; returns the number of rows.

    Raises:
        StateError: the file cannot be written, or the log cannot be read.
    """
    count = 0
    try:
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, _COLUMNS)
            writer.writeheader()
            for row in metric_rows(run):
                writer.writerow(row)
                count += 1
    except OSError as error:
        raise StateError(f"cannot write {file}: {error.strerror}") from None
    return count


def write_parquet(run: RunDir, file: Path) -> int:
    """Write all metrics of a run as Parquet; returns the number of rows.

    Raises:
        UsageError: pyarrow is not installed.
        StateError: the file cannot be written, or the log cannot be read.
    """
    try:
        import pyarrow  # type: ignore[import-not-found, unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UsageError("--parquet needs pyarrow: pip install 'paceline[parquet]'") from None
    rows = list(metric_rows(run))
    table = pyarrow.table({name: [row[name] for row in rows] for name in _COLUMNS})
    try:
        pyarrow.parquet.write_table(table, file)
    except OSError as error:
        raise StateError(f"cannot write {file}: {error}") from None
    return len(rows)
