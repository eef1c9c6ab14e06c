"""Trains on shards of Parquet: read by position, and shuffled by blocks.

    python shards.py --write              # writes shards/part-0.parquet and three more
    paceline run -w 2 -s 2 shards.py

Give `--data` the address of your own shards, such as "s3://bucket/train/*.parquet", with columns x0 to x7 and y.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="shards/*.parquet")
parser.add_argument("--write", action="store_true", help="write the shards, and end")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
COLUMNS = [f"x{c}" for c in range(8)]


def write(folder: Path) -> None:
    """Write 4 shards with 1,000 rows each, in row groups of 250, sorted by y."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).standard_normal((4000, 8)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    order = np.argsort(y, kind="stable")
    for k in range(4):
        rows = order[1000 * k : 1000 * (k + 1)]
        table = {name: x[rows, c] for c, name in enumerate(COLUMNS)} | {"y": y[rows]}
        pq.write_table(pa.table(table), folder / f"part-{k}.parquet", row_group_size=250)


if args.write:
    Path("shards").mkdir(exist_ok=True)
    write(Path("shards"))
    sys.exit()

job = paceline.join(seed=7)
data = paceline.data.open(args.data, columns=[*COLUMNS, "y"])
train_set, test_set = paceline.data.split(data, (0.9, 0.1), seed=7)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
job.prepare(model, optimizer)


def logits(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(torch.stack([batch[name] for name in COLUMNS], dim=1))


@job.validate(test_set, every=100, batch_size=200)
def accuracy(model, batch):
    return {"accuracy": (logits(model, batch).argmax(1) == batch["y"]).float()}


for batch in job.batches(train_set, batch_size=64, slots=2, epochs=args.epochs):
    optimizer.zero_grad()
    loss = F.cross_entropy(logits(model, batch), batch["y"])
    loss.backward()
    job.log(loss=loss)
    optimizer.step()

job.close()
