"""The README's script from the command to its first step, beside the plain PyTorch script of the same page.

    python bench/start.py --rounds 10 --json start.json

Contenders: `paceline run -w 2 -s 2 train.py`, `python train.py` (embedded), and `loop_readme.py` in place of the plain
script. The time begins before the command starts. It ends when the script first sees a step behind it:

- on Paceline: at the start of the first turn with `job.step` above 0, in the first worker that gets there. The first
  commit is before that, and the weights of version 1 have arrived
- plain: when the first `optimizer.step()` has returned

A line that writes this time is added to each script, and 20 epochs become 1 so that the script ends soon. Each command
runs once before the first round: files and compiled modules are in the page cache. Nothing else stays warm.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import figures
import plots
import tables
from harness import HERE, ContenderError, Label, Results, environment, parser, run_rounds, run_together, select

README = HERE.parent / "README.md"
PLAIN = HERE / "loop_readme.py"
TIMEOUT_S = 120.0
GROUP = "command to first step"
LABELS = {
    "run": Label(group=GROUP, name="paceline run -w 2 -s 2 train.py", unit="s"),
    "embedded": Label(group=GROUP, name="python train.py, embedded", unit="s"),
    "plain": Label(group=GROUP, name="the plain PyTorch script", unit="s"),
}
TARGETS = {"run_over_plain": "≤ 2", "embedded_over_plain": "≤ 1.15"}
_SCRIPT = re.compile(r"`train\.py`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = """\
import os, time
def _note(seen=[]):
    if not seen:
        seen.append(time.perf_counter())
        with open(os.path.join({folder!r}, f"{{os.getpid()}}.first"), "w") as file:
            file.write(repr(seen[0]))
"""


def readme_script() -> str:
    """The script `train.py` of the README.

    Raises:
        ContenderError: the page has no such script.
    """
    found = _SCRIPT.search(README.read_text())
    if found is None:
        raise ContenderError(f"{README.name} has no block of Python after a line that ends with `train.py`:")
    return found[1]


def noted(script: str, after: str, line: str, folder: Path) -> str:
    """The script with one epoch and with `line` after the only line that begins with `after` (without indentation).

    `_note()` writes the time of its first call to a file in `folder`. `line` calls it.

    Raises:
        ContenderError: there is not exactly one such line, or not exactly one number of epochs to replace.
    """
    text, epochs = re.subn(r"epochs=20\b|range\(20\)", lambda found: found[0].replace("20", "1"), script)
    lines: list[str] = []
    places = 0
    for each in text.splitlines():
        lines.append(each)
        if each.lstrip().startswith(after):
            places += 1
            indent = len(each) - len(each.lstrip()) + (4 if each.lstrip().startswith("for ") else 0)
            lines.append(" " * indent + line)
    if (places, epochs) != (1, 1):
        raise ContenderError(f"the script has {places} lines {after!r} and {epochs} numbers of epochs instead of one")
    return _NOTE.format(folder=str(folder)) + "\n".join(lines) + "\n"


def first_s(out: Path, began: float) -> float:
    """Seconds from `began` to the earliest time that a process of the command wrote.

    Raises:
        ContenderError: no process wrote one.
    """
    times = [float(file.read_text()) for file in out.glob("*.first")]
    if not times:
        raise ContenderError("the command ended without a step")
    return min(times) - began


def _measure(key: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        script = out / "train.py"
        if key == "plain":
            script.write_text(noted(PLAIN.read_text(), "optimizer.step()", "_note()", out))
        else:
            script.write_text(noted(readme_script(), "for x, y in job.batches", "job.step and _note()", out))
        run = [str(Path(sys.executable).with_name("paceline")), "run", "-w", "2", "-s", "2", "--dir", f"{out}/run"]
        command = [*(run if key == "run" else [sys.executable]), str(script)]
        began = time.perf_counter()
        run_together([(["env", "-C", folder, *command], environment())], timeout_s=TIMEOUT_S)
        return {key: first_s(out, began)}


def contenders() -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {LABELS[key].name: functools.partial(_measure, key) for key in LABELS}


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The ratios, by name; None if a part was not measured."""
    plain = values.get("plain", [])
    return {f"{key}_over_plain": figures.ratio(values.get(key, []), plain) for key in ("run", "embedded")}


def main() -> int:
    """Run the rounds, print the table, write the JSON and the plot."""
    options = parser("start", __doc__)
    options.set_defaults(rounds=10)
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    taken = select(contenders(), args.only)
    if not args.quick:
        for measure in taken.values():
            measure()
    results = Results("start", LABELS, TARGETS, ratios, args.json)
    run_rounds(results, taken, args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
