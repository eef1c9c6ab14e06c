"""The time of each part of a small step: medians over the steps of a trace, counted from the start of the push.

    paceline run -w 1 -s 1 --slots 1 --trace trace.json bench/loop_paceline.py --steps 300
    python bench/timeline.py trace.json

Use runs with one worker, one server and one slot a step: their events do not overlap.
"""

from __future__ import annotations

import argparse
import bisect
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

EVENTS = ("push", "handle Turn", "sum", "handle Ready", "apply", "reply", "fill", "turn")
WARM_UP = 30  # steps


def spread(values: list[float]) -> str:
    """The median and the range from p10 to p90 in milliseconds, of values in microseconds."""
    values = sorted(values)
    low, middle, high = (values[len(values) * tenth // 10] / 1000 for tenth in (1, 5, 9))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def steps(events: list[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """For each push, the next event of each kind."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: float(e["ts"])):
        by_name[event["name"]].append(event)
    found = []
    for push in by_name["push"][WARM_UP:]:
        step = {}
        for name in EVENTS:
            at = bisect.bisect_left(by_name[name], push["ts"], key=lambda e: e["ts"])
            if at < len(by_name[name]):
                step[name] = by_name[name][at]
        if len(step) == len(EVENTS):
            found.append(step)
    return found


def main() -> None:
    """Read the trace and print when each event of a step begins and how long it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    found = steps(json.loads(parser.parse_args().trace.read_text())["traceEvents"])
    if not found:
        raise SystemExit("no steps in this trace: --help shows how to record one")
    print(f"{len(found)} steps; ms, median (p10 to p90)")
    for name in EVENTS:
        begins = spread([s[name]["ts"] - s["push"]["ts"] for s in found])
        print(f"  {name:14s} begins {begins:24s} takes {spread([s[name]['dur'] for s in found])}")


if __name__ == "__main__":
    main()
