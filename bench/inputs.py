"""The data of the benchmarks of input: costly images, slow reads, large batches. Generated; nothing is downloaded."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

SIDE = 64
CLASSES = 10
_IMAGES = 64
_FULL = 640
LARGE_NBYTES = 25_000_000


class Jpegs(Dataset[Any]):
    """JPEG images that are decoded, cropped at random, resized, flipped and normalised."""

    def __init__(self) -> None:
        from PIL import Image

        self._files: list[bytes] = []
        generator = torch.Generator().manual_seed(1)
        for _ in range(_IMAGES):
            coarse = torch.rand(3, 160, 160, generator=generator)
            fine = nn.functional.interpolate(coarse[None], size=(_FULL, _FULL), mode="bilinear")[0]
            pixels = (fine * 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=90)
            self._files.append(file.getvalue())

    def __len__(self) -> int:
        """Many: images repeat, and are augmented differently."""
        return 1 << 16

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        """Decode and augment one image."""
        import numpy as np
        from PIL import Image

        image = Image.open(io.BytesIO(self._files[i % _IMAGES])).convert("RGB")
        side = int(_FULL * (0.5 + 0.5 * float(torch.rand(()))))
        left, top = (int(float(torch.rand(())) * (_FULL - side)) for _ in range(2))
        small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        x = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1).float() / 127.5 - 1.0
        return (x.flip(2) if float(torch.rand(())) < 0.5 else x).contiguous(), i % CLASSES


class Slow:
    """A source whose every read takes 20 ms, as from a far disk, and no processor time."""

    length = 1 << 16
    fingerprint = "slow reads of noise"

    def __init__(self) -> None:
        self._x = torch.randn(64, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """Sleep, then return the samples."""
        time.sleep(0.02)
        return [(self._x[i % 64], i % CLASSES) for i in positions]


class Ready(Dataset[Any]):
    """Samples that lie in memory."""

    def __init__(self) -> None:
        self._x = torch.randn(64, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        """As many as the others."""
        return 1 << 16

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        """Return one sample."""
        return self._x[i % 64], i % CLASSES


class Large(Dataset[Any]):
    """Each sample is a batch of 25 MB that lies in memory."""

    def __init__(self) -> None:
        self._batch = torch.arange(LARGE_NBYTES // 4, dtype=torch.float32)

    def __len__(self) -> int:
        """Enough for a measurement."""
        return 1 << 12

    def __getitem__(self, i: int) -> torch.Tensor:
        """Return the batch."""
        return self._batch


def only(samples: list[Any]) -> Any:
    """The one sample of a batch, as it is."""
    return samples[0]


def network(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A convolutional network and its optimizer; `width` sets what a sample costs."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * width, CLASSES),
    )  # fmt: skip
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


DATA = {"jpeg": Jpegs, "slow": Slow, "ready": Ready, "large": Large}
