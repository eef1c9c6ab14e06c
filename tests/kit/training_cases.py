"""Small deterministic training cases, as plain PyTorch: shared by the Paceline script and by the reference.

This file, like the reference, does not know Paceline.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

FEATURES, CLASSES = 32, 10
COUNTED = 512

Loss = Callable[[nn.Module, Sequence[torch.Tensor]], Any]  # returns a tensor; `backward` has no types


def _no_scheduler(_: torch.optim.Optimizer) -> Any:
    return None


def _no_log(_: Any) -> dict[str, torch.Tensor]:
    return {}


def _nothing(_model: nn.Module, _phase: int = 0) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training run. `epochs` has one number for each phase.

    `before` is called with the model before each phase, `after_backward` between `backward()` and `step()`, and
    what `log` makes of the model is logged in every turn.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    data: Callable[[], Dataset[Any]]
    loss: Loss
    scheduler: Callable[[torch.optim.Optimizer], Any] = _no_scheduler
    before: Callable[[nn.Module, int], None] = _nothing
    after_backward: Callable[[nn.Module], None] = _nothing
    log: Callable[[Any], dict[str, torch.Tensor]] = _no_log
    shuffle: bool = True
    drop_last: bool = False
    batch_size: int = 16
    slots: int = 4
    epochs: tuple[int, ...] = (2,)
    clip_norm: float | None = None
    scheduler_every: str = "step"


class Mlp(nn.Module):
    """About 290 kB in several blocks, with one tensor cut into several: enough for three servers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 300)
        self.second = nn.Linear(300, 200)
        self.last = nn.Linear(200, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(F.relu(self.first(x)))))  # type: ignore[no-any-return]


class Scale(nn.Module):
    """A float buffer that never changes."""

    factors: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factors", torch.linspace(0.1, 1.3, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors


class Normed(nn.Module):
    """A model with batch normalisation, dropout and buffers of all kinds, of which some change."""

    seen: torch.Tensor
    flags: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 64)
        self.norm = nn.BatchNorm1d(64)
        self.wide = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 64))
        self.scale = Scale()
        self.norm2 = nn.BatchNorm1d(64, track_running_stats=True, momentum=None)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(64, CLASSES)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(4, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        self.flags[int(torch.randint(4, ()))] ^= True
        return self.last(self.drop(self.norm2(self.scale(self.wide(self.norm(self.first(x)))))))  # type: ignore[no-any-return]


class Branched(nn.Module):
    """`rare` is used only in some slots and some steps, depending on the batch. `never` is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 64)
        self.rare = nn.Linear(64, 64)
        self.never = nn.Linear(3, 3)
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        if int(x.detach().sum() * 1e3) % 5 < 2:
            x = x + self.rare(x)
        return self.last(x)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One parameter under two names, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(FEATURES, FEATURES, bias=False)
        self.frozen = nn.Linear(FEATURES, FEATURES)
        self.decode = nn.Linear(FEATURES, FEATURES, bias=False)
        self.decode.weight = self.encode.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(torch.tanh(self.frozen(self.encode(x))))  # type: ignore[no-any-return]


class Shapes(nn.Module):
    """Parameters of several dtypes and layouts, one without dimensions and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 4, 3)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.turned = nn.Parameter((torch.randn(24, CLASSES) / 5).t())
        self.fine = nn.Parameter(torch.rand(CLASSES, dtype=torch.float64))
        self.coarse = nn.Parameter(torch.rand(CLASSES).bfloat16())
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.empty(0, 3))
        assert not self.turned.is_contiguous()
        assert not self.conv2.weight.is_contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.view(-1, 1, 4, 8).contiguous(memory_format=torch.channels_last)
        x = F.avg_pool2d(self.conv2(F.relu(self.conv(image))), (1, 1)).flatten(1)[:, :24]
        x = x @ self.turned.t() * self.fine + self.coarse * self.scalar + self.empty.sum()
        return x.float()


class Integers(nn.Module):
    """Parameters that never have a gradient, in the optimizer with the others, and one in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, CLASSES)
        self.order = nn.Parameter(torch.arange(CLASSES).flip(0), requires_grad=False)
        self.mask = nn.Parameter(torch.arange(CLASSES) % 3 != 0, requires_grad=False)
        self.small = nn.Parameter(torch.tensor(7, dtype=torch.uint8), requires_grad=False)
        self.frozen = nn.Parameter(torch.rand(CLASSES), requires_grad=False)
        self.coarse = nn.Parameter(torch.rand(CLASSES).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)[:, self.order] * (1 + self.coarse) + self.frozen / self.small
        return x.where(self.mask, x / 2)


class Counts(nn.Module):
    """Counts how often each sample was learned, in every block of every server; the last column counts the steps.

    Its gradient depends on the samples alone, so the count is exact in every mode. Only the last column but one gets a
    number that no other attempt has: its rows stay equal as long as a slot counts as one whole attempt.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(64, COUNTED + 2))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        mark = random.SystemRandom().randrange(1024)
        return self.counts[:, index].sum() + self.counts[:, -1].sum() + mark * self.counts[:, -2].sum()


def points(count: int) -> TensorDataset:
    """`count` points of ten noisy classes; draws from a generator of its own."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    return TensorDataset(centres[y] + torch.randn(count, FEATURES, generator=generator), y)


class Augmented(Dataset[Any]):
    """Random noise on every sample, drawn from torch's global generator."""

    def __init__(self, count: int) -> None:
        self.points = points(count)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.points[index]
        return x + 0.1 * torch.randn(FEATURES), y


def classify(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def classify_autocast(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return classify(model, batch)


def _clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)


def reconstruct(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(model(batch[0]), batch[0])


def _two_groups(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 5e-3}]


def _freeze_first(model: nn.Module, phase: int) -> None:
    """Freeze the first layer in phase 1."""
    model.get_submodule("first").requires_grad_(phase != 1)


def _sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, **more)


CASES = {
    # Every sample is counted once an epoch; `seen` is the number of steps that the oldest block read contains.
    "counts": Case(
        model=Counts,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        data=lambda: TensorDataset(torch.arange(COUNTED)),
        loss=lambda model, batch: -model(batch[0]),
        log=lambda model: {"seen": model.counts[:, -1].min()},
        batch_size=8,
        slots=1,
        epochs=(2,),
    ),
    # 203 = 3 steps of 4 slots of 16, then 11 samples: the last step has one slot, which is short.
    "sgd": Case(model=Mlp, optimizer=_sgd, data=lambda: points(203), loss=classify, epochs=(3,)),
    # 230: the last step has three slots, the last of which has 6 samples.
    "adamw": Case(
        model=Mlp,
        optimizer=lambda model: torch.optim.AdamW(_two_groups(model), lr=2e-3, weight_decay=0.1),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
        data=lambda: points(230),
        loss=classify,
        epochs=(3,),
    ),
    "norm": Case(model=Normed, optimizer=_sgd, data=lambda: points(230), loss=classify, epochs=(3,)),
    "unused": Case(
        model=Branched,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-2),
        data=lambda: points(230),
        loss=classify,
        epochs=(4,),
    ),
    "norm-long": Case(model=Normed, optimizer=_sgd, data=lambda: points(230), loss=classify, epochs=(20,)),
    "fused": Case(
        model=Mlp,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True),
        data=lambda: points(203),
        loss=classify,
    ),
    "adagrad": Case(
        model=Mlp,
        optimizer=lambda model: torch.optim.Adagrad(
            model.parameters(), lr=2e-2, initial_accumulator_value=0.1, lr_decay=1e-3
        ),
        data=lambda: points(120),
        loss=classify,
    ),
    "rmsprop": Case(
        model=Mlp,
        optimizer=lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5, centered=True),
        data=lambda: points(120),
        loss=classify,
    ),
    "tied": Case(
        model=Tied,
        optimizer=lambda model: torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3),
        data=lambda: points(120),
        loss=reconstruct,
    ),
    "toggled": Case(
        model=Mlp,
        optimizer=_sgd,
        data=lambda: points(120),
        loss=classify,
        before=_freeze_first,
        epochs=(1, 2, 1),
    ),
    "augmented": Case(model=Mlp, optimizer=_sgd, data=lambda: Augmented(120), loss=classify),
    "slot-clip": Case(model=Mlp, optimizer=_sgd, data=lambda: points(120), loss=classify, after_backward=_clip),
    "autocast": Case(model=Mlp, optimizer=_sgd, data=lambda: points(120), loss=classify_autocast),
    "shapes": Case(model=Shapes, optimizer=_sgd, data=lambda: points(120), loss=classify),
    "integers": Case(
        model=Integers,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1),
        data=lambda: points(120),
        loss=classify,
    ),
    "integers-sgd": Case(model=Integers, optimizer=_sgd, data=lambda: points(120), loss=classify),
    "drop-last": Case(
        model=Mlp, optimizer=_sgd, data=lambda: points(203), loss=classify, drop_last=True, shuffle=False
    ),
    "nested": Case(model=Mlp, optimizer=_sgd, data=lambda: points(203), loss=classify, epochs=(1, 1, 1)),
    # A scheduler that is stepped after each epoch; an epoch loop, in which each epoch drops its last samples.
    "epochs": Case(
        model=Normed,
        optimizer=_sgd,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        scheduler_every="epoch",
        data=lambda: points(230),
        loss=classify,
        epochs=(2, 1),
    ),
    "epochs-nested": Case(
        model=Mlp,
        optimizer=_sgd,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3),
        scheduler_every="epoch",
        data=lambda: points(203),
        loss=classify,
        drop_last=True,
        epochs=(1, 1, 1),
    ),
    "one-slot": Case(model=Mlp, optimizer=_sgd, data=lambda: points(203), loss=classify, slots=1),
    "clipped": Case(model=Mlp, optimizer=_sgd, data=lambda: points(203), loss=classify, epochs=(3,), clip_norm=0.5),
}
