"""The plain PyTorch script of the README's diff, whole: the peer of `start.py`."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.randn(12_000, 20)
y = x[:, :5].argmax(1)
train_set, test_set = TensorDataset(x[:10_000], y[:10_000]), TensorDataset(x[10_000:], y[10_000:])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def validate():
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum() for x, y in DataLoader(test_set, batch_size=256))
    model.train()
    print("accuracy", right / len(test_set))


for epoch in range(20):  # noqa: B007 - as in the README
    for x, y in DataLoader(train_set, batch_size=256, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    validate()

save_file(model.state_dict(), "model.safetensors")
