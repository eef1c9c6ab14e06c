"""Small files of every format that `paceline.data.open` reads, with the same numbers in each."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 96
SHARDS = 3


def numbers() -> tuple[Any, Any]:
    """`ROWS` points and the sum of each: y is a function of x that a linear model can learn."""
    x = np.random.default_rng(5).standard_normal((ROWS, 4)).astype(np.float32)
    return x, x.sum(1).astype(np.float32)


def shards() -> list[range]:
    """The rows of each shard; the last is short."""
    return [range(0, 40), range(40, 80), range(80, ROWS)]


def write_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = numbers()
    for k, rows in enumerate(shards()):
        mine = list(rows)
        table = {f"x{c}": x[mine, c] for c in range(4)} | {"y": y[mine], "name": [f"row {r}" for r in mine]}
        pq.write_table(pa.table(table), folder / f"part-{k}.parquet", row_group_size=16)


def write_arrow(folder: Path) -> None:
    import pyarrow as pa

    x, y = numbers()
    for k, rows in enumerate(shards()):
        mine = list(rows)
        flat = pa.array(x[mine].reshape(-1))
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, 4), "y": y[mine]})
        with pa.OSFile(str(folder / f"part-{k}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=16)


def write_csv(folder: Path) -> None:
    x, y = numbers()
    for k, rows in enumerate(shards()):
        with (folder / f"part-{k}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\r\n" if k == 1 else "\n")
            writer.writerow(["x0", "x1", "x2", "x3", "y", "note"])
            for r in rows:
                writer.writerow([*map(float, x[r]), float(y[r]), f'a "quoted"\nnote, {r}' if r % 5 == 0 else f"{r}"])


def write_jsonl(folder: Path) -> None:
    x, y = numbers()
    for k, rows in enumerate(shards()):
        lines = [json.dumps({"x": [float(v) for v in x[r]], "y": float(y[r])}) for r in rows]
        (folder / f"part-{k}.jsonl").write_text("\n".join(lines) + "\n" * (k != 1))


def write_tar(folder: Path) -> None:
    x, y = numbers()
    for k, rows in enumerate(shards()):
        with tarfile.open(folder / f"part-{k}.tar", "w") as archive:
            for r in rows:
                buffer = io.BytesIO()
                np.save(buffer, x[r])
                for suffix, content in (("npy", buffer.getvalue()), ("json", json.dumps(float(y[r])).encode())):
                    member = tarfile.TarInfo(f"set/{r:05d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def write_npy(folder: Path) -> None:
    x, y = numbers()
    for k, rows in enumerate(shards()):
        np.save(folder / f"part-{k}.npy", np.concatenate([x[list(rows)], y[list(rows), None]], axis=1))


def write_images(folder: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(6).integers(0, 256, (ROWS, 6, 5, 3), dtype=np.uint8)
    for r in range(ROWS):
        where = folder / f"class-{r % 3}"
        where.mkdir(exist_ok=True)
        Image.fromarray(pixels[r]).save(where / f"{r:03d}.png")


def write_text(folder: Path) -> None:
    x, y = numbers()
    for k, rows in enumerate(shards()):
        lines = ["" if r % 7 == 0 else f"{r} " + " ".join(f"{v:.4f}" for v in (*x[r], y[r])) for r in rows]
        (folder / f"part-{k}.txt").write_text("\n\n".join(line or f"{r}" for r, line in zip(rows, lines, strict=True)))


WRITERS: dict[str, Callable[[Path], None]] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "tar": write_tar,
    "npy": write_npy,
    "images": write_images,
    "text": write_text,
}
"""By format: what writes files with `ROWS` samples into a folder."""


def write_all(root: Path) -> dict[str, Path]:
    """Write every format to a folder of its own."""
    found = {}
    for name, write in WRITERS.items():
        folder = root / name
        folder.mkdir(parents=True)
        write(folder)
        found[name] = folder
    return found
