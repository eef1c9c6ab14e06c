"""Models and data that every contender of a benchmark trains: the same shapes, the same optimizer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset


class LeNet(nn.Module):
    """Two convolutions with average pooling, then 120-84-10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class MLP(nn.Module):
    """784-4096-4096-10: twenty million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 4096),
            nn.ReLU(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.layers(x)


class Matrices(nn.Module):
    """Five equal matrices of `mb` · 10^6 bytes together, for steps without compute."""

    def __init__(self, mb: float) -> None:
        super().__init__()
        unit = (mb * 1e6 / 4 / 5 / 20) ** 0.5  # a matrix is 5 by 4 units
        self.matrices = nn.ParameterList(torch.zeros(round(5 * unit), round(4 * unit)) for _ in range(5))


class Ten(nn.Module):
    """The smallest model: ten numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.bias.expand(len(x), 10)


MODELS = {"lenet": LeNet, "mlp": MLP, "ten": Ten}


def make(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer: SGD with momentum."""
    model = MODELS[name]()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def data(num_samples: int = 8192) -> TensorDataset:
    """Random images with the shape of Fashion-MNIST; the content does not change the speed."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_samples, 1, 28, 28, generator=generator)
    return TensorDataset(images, torch.randint(10, (num_samples,), generator=generator))
