"""A small network on a table: validation, the best model kept, early stopping, and resume.

    python tabular.py
    paceline run -w 2 -s 2 tabular.py --csv houses.csv
    paceline run --resume runs/latest

The table is a CSV file with a line of names; all columns are numbers, and the last one is to be predicted. Without
--csv the table is generated. The third command continues a run that was killed or interrupted: it runs this script
again, which passes the epochs that are done without a turn, with the same validation results as before. So `best` and
`waited` get the values that they had, and need no checkpoint of their own.
"""

import argparse
import csv

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline


class Network(nn.Module):
    """Scales its input itself, by buffers: a saved model is complete."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("std", rows.std(0))
        self.layers = nn.Sequential(
            nn.Linear(rows.shape[1], 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers((x - self.mean) / self.std).squeeze(1)


def table(path: str | None) -> torch.Tensor:
    """The rows of the CSV file, or 4,000 generated rows. Every worker makes the same ones."""
    if path is not None:
        with open(path, newline="", encoding="utf-8") as file:
            return torch.tensor([[float(word) for word in row] for row in list(csv.reader(file))[1:]])
    x = torch.rand(4000, 8, generator=torch.Generator().manual_seed(1))
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(2))
    return torch.cat([x, (y + 0.05 * noise)[:, None]], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on a table, with early stopping.")
    parser.add_argument("--csv", default=None, metavar="FILE", help="the table (default: a generated one)")
    parser.add_argument("--epochs", type=int, default=100, help="at most this many")
    parser.add_argument("--patience", type=int, default=5, help="stop after so many epochs without a better model")
    parser.add_argument("--save", default="best.safetensors", metavar="FILE", help="where the best model goes")
    args = parser.parse_args()

    rows = table(args.csv)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))]  # seeded: the same split for all
    x, y = rows[:, :-1], rows[:, -1]
    split = len(rows) * 8 // 10
    train_set, test_set = TensorDataset(x[:split], y[:split]), TensorDataset(x[split:], y[split:])

    job = paceline.join(seed=7)
    job.servable(lambda: Network(x[:split]), x[:1])
    model = Network(x[:split])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    job.prepare(model, optimizer)

    @job.validate(test_set, every=50)  # every 50 steps, and at the end of each loop
    def error(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"error": (model(x) - y).abs()}

    best, waited = float("inf"), 0
    for _ in range(args.epochs):
        for x, y in job.batches(train_set, batch_size=32, slots=4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            job.log(loss=loss)
            optimizer.step()
        if job.metrics["error"] < best:  # the same number in every worker
            best, waited = job.metrics["error"], 0
            job.save(args.save)  # one worker writes; the others wait for the file
        elif (waited := waited + 1) == args.patience:
            job.stop(f"no better model for {args.patience} epochs")
            break

    if job.lead:
        print(f"best error {best:.4f}, in {args.save}")


if __name__ == "__main__":
    main()
