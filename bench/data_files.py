"""Reading files by position: Parquet beside pyarrow's own scan, the index of CSV beside `wc -l`, memory, and shuffles.

    python bench/data_files.py --rounds 3 --json data_files.json

- `parquet_over_scan`: rows per second, in slots of 1,024 rows as tensors, over those of pyarrow's dataset scan with
  ``use_threads=False``; both have one thread, and read local files that are in the page cache
- `index_over_wc`: bytes per second of the index of a CSV over those of `wc -l`
- `memory_mb`: how much the private memory (RssAnon) of a process grows that reads 2 million rows of Parquet in slots,
  by blocks, with ``memory_bytes`` of 64 MB

Seconds are those of the processor: each work has one thread, and its files are in the page cache.
- `correlation`: of position and label, on sorted data: shuffle by blocks, and full shuffle (`--plot` draws both)
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS, GROUP, SLOT = 2_000_000, 32, 16_384, 1024
TARGETS = {"parquet_over_scan": "≥ 0.5", "index_over_wc": "≥ 0.2"}


def write_parquet(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    table = {f"x{c}": rng.standard_normal(rows).astype(np.float32) for c in range(COLUMNS)}
    pq.write_table(pa.table({**table, "y": np.arange(rows)}), folder / "rows.parquet", row_group_size=GROUP)


def write_csv(path: Path, nbytes: int) -> None:
    rng = np.random.default_rng(0)
    lines = ",".join(f"x{c}" for c in range(8)) + "\n"
    block = "".join(",".join(f"{v:.6f}" for v in row) + "\n" for row in rng.standard_normal((20_000, 8)))
    with path.open("w") as file:
        file.write(lines)
        for _ in range(nbytes // len(block) + 1):
            file.write(block)


def _used() -> float:
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def seconds(work: Callable[[], Any]) -> float:
    """The seconds of the processor that `work` takes, in this process and in those that it waits for."""
    began = _used()
    work()
    return _used() - began


def read_slots(folder: Path, *, blocks: bool, memory_bytes: int = 256 << 20, each: Callable[[], Any] = int) -> int:
    import paceline
    from paceline.core.shuffles import permute_blocks

    source: Any = paceline.data.open(folder / "rows.parquet", memory_bytes=memory_bytes)
    count = source.length // SLOT
    for slot in range(count):
        positions = np.arange(slot * SLOT, (slot + 1) * SLOT, dtype=np.int64)
        if blocks:
            positions = permute_blocks(positions, source.length, source.block_size, source.block_window, 0, 0)
        source.read_batch(positions)
        each()
    return count * SLOT


def scan(folder: Path) -> int:
    import pyarrow.dataset as ds
    import torch

    rows = 0
    for batch in ds.dataset(folder / "rows.parquet").to_batches(batch_size=SLOT, use_threads=False):
        for column in batch.columns:
            torch.from_numpy(np.array(column))
        rows += batch.num_rows
    return rows


def index(path: Path) -> None:
    from paceline.data.files.indexes import quiet
    from paceline.data.files.places import list_files
    from paceline.data.files.records import index_records

    index_records(list_files(path, ()), quiet, quotes=True, header=True)


MEMORY = """
import re, sys
sys.path.insert(0, {here!r})
import data_files, numpy, torch, pyarrow.parquet
from pathlib import Path
import paceline.data.opening
def private():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1e3
before, most = private(), []
data_files.read_slots(Path({folder!r}), blocks=True, memory_bytes=64 << 20, each=lambda: most.append(private()))
print(max(most) - before)
"""


def memory_mb(folder: Path) -> float:
    code = MEMORY.format(here=str(Path(__file__).parent), folder=str(folder))
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)


def correlations(plot: Path | None) -> dict[str, float]:
    from paceline.core.shuffles import permute, permute_blocks

    n = 100_000
    at = np.arange(n, dtype=np.int64)
    orders = {"blocks": permute_blocks(at, n, 1000, 8, 0, 0), "full": permute(at, n, 0, 0)}
    if plot is not None:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), sharey=True)
        for axis, (name, order) in zip(axes, orders.items(), strict=True):
            axis.plot(at[::50], order[::50], ",", color="tab:blue")
            axis.set(title=f"shuffle: {name}", xlabel="position in the epoch")
        axes[0].set_ylabel("sample (sorted by label)")
        figure.tight_layout()
        figure.savefig(plot, dpi=90)
        pyplot.close(figure)
    return {name: round(float(np.corrcoef(at, order)[0, 1]), 4) for name, order in orders.items()}


def measure(rounds: int, csv_mb: int, plot: Path | None) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {name: [] for name in ("source", "shuffled", "scan", "index", "wc")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_parquet(folder, ROWS)
        csv = folder / "rows.csv"
        write_csv(csv, csv_mb << 20)
        subprocess.run(["wc", "-l", str(csv)], capture_output=True, check=True)
        for _ in range(rounds):
            found["source"].append(ROWS // SLOT * SLOT / seconds(lambda: read_slots(folder, blocks=False)))
            found["shuffled"].append(ROWS // SLOT * SLOT / seconds(lambda: read_slots(folder, blocks=True)))
            found["scan"].append(ROWS / seconds(lambda: scan(folder)))
            size = csv.stat().st_size
            found["index"].append(size / seconds(lambda: index(csv)))
            found["wc"].append(size / seconds(lambda: subprocess.run(["wc", "-l", str(csv)], capture_output=True)))
        memory = memory_mb(folder)
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {
        "rounds": found,
        "medians": middle,
        "ratios": {
            "parquet_over_scan": middle["source"] / middle["scan"],
            "shuffled_over_scan": middle["shuffled"] / middle["scan"],
            "index_over_wc": middle["index"] / middle["wc"],
        },
        "memory_mb": memory,
        "correlation": correlations(plot),
        "targets": TARGETS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv-mb", type=int, default=1024)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    args = parser.parse_args()
    text = json.dumps(measure(args.rounds, args.csv_mb, args.plot), indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
