"""The script whose model `bench/serve.py` serves."""

from __future__ import annotations

import torch
from models import LeNet

import paceline

job = paceline.join(seed=1)
job.servable(LeNet, torch.zeros(1, 1, 28, 28))
