"""A loop per epoch with a validation of the script's own between the loops, and patience: the natural first port.

worker-1 kills itself once, in the loop of epoch `--dies`, in which worker-0 waits until worker-1 has started again and
ended. `--leave` says what the script does when its patience ends.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--dies", type=int, default=-1)
parser.add_argument("--leave", choices=["stop", "break"], default="stop")
args = parser.parse_args()
NAME = os.environ.get("PACELINE_NAME")

job = paceline.join(seed=7)
x = torch.randn(256, 8)
data = TensorDataset(x, x[:, :3].argmax(1))
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
job.prepare(model, optimizer)


def validate() -> float:
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x), data.tensors[1]).item()
    model.train()
    return loss


best, waited = 1e9, 0
for epoch in range(6):
    for inputs, labels in job.batches(data, batch_size=32, slots=2):
        if NAME == "worker-1" and epoch == args.dies and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while NAME == "worker-0" and epoch == args.dies and not Path("ended").exists():
            time.sleep(0.02)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    loss = validate()
    print(f"{NAME} epoch {epoch} passed {job.passed}", flush=True)
    best, waited = (loss, 0) if loss < best else (best, waited + 1)
    if waited == 2:
        if args.leave == "stop":
            job.stop("no better for 2 epochs")
        break
job.save("model.safetensors")
Path("ended").touch()
