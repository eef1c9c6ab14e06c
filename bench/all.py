"""Run every benchmark and write the results into docs/performance.md.

    python bench/all.py --rounds 5

Results go to bench/out/*.json, plots to docs/img/*.png. A benchmark that fails does not stop the others, and keeps
its results so far. `--only-page` writes the page from existing results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import plots
import tables
from harness import HERE, OUT, end_on_sigterm

PAGE = HERE.parent / "docs" / "performance.md"
PICTURES = PAGE.parent / "img"
BENCHES = (
    "limits",
    "sync",
    "replicas",
    "train",
    "straggler",
    "methods",
    "memory",
    "crypt",
    "hosts",
    "engines",
    "start",
    "data",
    "leak",
)


def measure(name: str, rounds: int, *, quick: bool) -> bool:
    """Run one benchmark with its output on this terminal. Returns whether it succeeded."""
    print(f"\n=== {name}", flush=True)
    results, pictures = (OUT / "quick", OUT / "quick") if quick else (OUT, PICTURES)
    (results / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, str(HERE / f"{name}.py"), "--rounds", str(rounds), *(["--quick"] if quick else [])]
    command += ["--json", str(results / f"{name}.json"), "--plot", str(pictures / f"{name}.png")]
    with subprocess.Popen(command) as process:
        try:
            return process.wait() == 0
        except BaseException:  # end it by SIGTERM: after SIGKILL its contenders would keep running
            process.terminate()
            process.wait(30.0)
            raise


def write_page() -> None:
    """Replace the generated parts of the page by the existing results."""
    page = PAGE.read_text()
    for name in BENCHES:
        file = OUT / f"{name}.json"
        if not file.exists():
            print(f"{name}: no results, its part of {PAGE.name} stays as it was")
            continue
        document = json.loads(file.read_text())
        render = tables.leak_section if name == "leak" else tables.section
        page = tables.insert(page, name, f"{render(document)}\n\n![{name}](img/{name}.png)")
    PAGE.write_text(page)


def main() -> int:
    """Measure, write the page, and print what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--benches", nargs="+", default=BENCHES, choices=BENCHES, metavar="NAME", help="[all]")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run each benchmark briefly, with results in bench/out/quick; does not write the page",
    )
    parser.add_argument("--only-page", action="store_true")
    args = parser.parse_args()
    plots.require()
    end_on_sigterm()
    began = time.monotonic()
    benches = [] if args.only_page else args.benches
    failed = [name for name in benches if not measure(name, args.rounds, quick=args.quick)]
    if not args.quick:
        write_page()
        print(f"\n{PAGE} is written, after {(time.monotonic() - began) / 60:.0f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)} (see above)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
