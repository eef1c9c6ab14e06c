"""Images and labels as tensors in memory: Fashion-MNIST, and ten generated classes with the same shapes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, overload

from paceline.config.load import cache_dir
from paceline.datasets.idx_files import FASHION_MNIST, SIDE, Content, IdxFile, Split
from paceline.datasets.providers import load

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import TensorDataset

logger = logging.getLogger(__name__)

GENERATED = "generated:"
"""Given as `root` of `fashion_mnist`, it means `generated_ten_classes` instead of Fashion-MNIST."""

NUM_CLASSES = 10
_LICENCE = "Fashion-MNIST (Zalando SE), MIT"

# The mean and the standard deviation of the training pixels, after scaling to [0, 1].
_MEAN, _STD = 0.2860, 0.3530
# Standard deviation of the noise. No single pixel shows the class: LeNet ends its first epoch near 98 %, not at 100 %.
_GENERATED_NOISE = 2.0


class Splits(tuple["TensorDataset", "TensorDataset"]):
    """The pair (train, test), which also says where the data comes from.

    Attributes:
        source: the provider in one line, such as ``cache: /home/me/.cache/paceline/fashion-mnist``.
        licence: who made the data, and under which licence.
    """

    source: str
    licence: str

    def __new__(cls, train: TensorDataset, test: TensorDataset, source: str, licence: str) -> Splits:  # noqa: D102
        pair = super().__new__(cls, (train, test))
        pair.source, pair.licence = source, licence
        return pair

    def __getnewargs__(self) -> tuple[TensorDataset, TensorDataset, str, str]:
        return (*self, self.source, self.licence)


@overload
def fashion_mnist(
    root: str | Path | None = None,
    *,
    split: None = None,
    cache: str | Path | None = None,
    offline: bool = False,
) -> Splits: ...
@overload
def fashion_mnist(
    root: str | Path | None = None,
    *,
    split: Split,
    cache: str | Path | None = None,
    offline: bool = False,
) -> TensorDataset: ...
def fashion_mnist(
    root: str | Path | None = None,
    *,
    split: Split | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
) -> Splits | TensorDataset:
    """Return Fashion-MNIST, training set and test set, as tensors in memory.

    Images are float32 of shape (1, 28, 28), scaled to [0, 1] and then normalised by the mean and deviation of
    the training set; labels are int64. All providers give the same numbers; an INFO log line and `source` of the
    pair name the provider that was used. Any number of processes may call this at once: one fetches the files,
    the others wait for it and read the cache.

    Args:
        root: a directory with the four ``*-ubyte.gz`` files; if it is given, no other provider is tried.
            ``"generated:"`` gives `generated_ten_classes` instead.
        split: ``"train"`` or ``"test"`` for one data set, None for the pair.
        cache: the directory in which fetched files are kept (in a subdirectory); by default $PACELINE_CACHE, or
            ~/.cache/paceline.
        offline: use only files that are on this machine already.

    Raises:
        DatasetUnavailableError: no provider worked; the message lists each with its reason, and the remedy.
    """
    if split not in ("train", "test", None):
        raise ValueError(f"split must be 'train', 'test' or None, not {split!r}")
    if root == GENERATED:
        pair = generated_ten_classes()
        return pair if split is None else pair[split == "test"]
    release = FASHION_MNIST
    kept = cache_dir() if cache is None else Path(cache)
    content, source = load(release, split, root=None if root is None else Path(root), cache=kept, offline=offline)
    logger.info("%s from %s", release.name, source)
    made: dict[Split, TensorDataset] = {}
    if split != "test":
        made["train"] = _tensors(content, release.train_images, release.train_labels)
    if split != "train":
        made["test"] = _tensors(content, release.test_images, release.test_labels)
    return made[split] if split else Splits(made["train"], made["test"], source, _LICENCE)


def generated_ten_classes(seed: int = 0, *, num_train: int = 60_000, num_test: int = 10_000) -> Splits:
    """Return a generated ten-class data set with the shapes and types of Fashion-MNIST.

    Each class is a smooth random picture; a sample is its class picture shifted by up to three pixels, with a
    random contrast and heavy noise. A small convolutional network exceeds 88 % accuracy within an epoch; that
    says nothing about real data. The same seed gives the same data.
    """
    import torch
    from torch.nn.functional import interpolate
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(NUM_CLASSES, 1, 7, 7, generator=generator)
    pictures = interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    offsets = [(down, right) for down in range(-3, 4) for right in range(-3, 4)]
    shifted = torch.stack([pictures.roll(offset, dims=(2, 3)) for offset in offsets], dim=1)

    def draw(count: int) -> TensorDataset:
        labels = torch.randint(NUM_CLASSES, (count,), generator=generator)
        where = torch.randint(len(offsets), (count,), generator=generator)
        contrast = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
        images = torch.randn(count, 1, SIDE, SIDE, generator=generator)
        images.mul_(_GENERATED_NOISE).add_(shifted[labels, where].mul_(contrast))
        return TensorDataset(images, labels)

    return Splits(
        draw(num_train), draw(num_test), f"generated: ten generated classes, seed {seed}", "generated, free of rights"
    )


def _tensors(content: Content, images: IdxFile, labels: IdxFile) -> TensorDataset:
    import torch
    from torch.utils.data import TensorDataset

    def decode(file: IdxFile, dtype: torch.dtype) -> Tensor:
        # A bytearray, because torch warns about read-only memory. `to` makes the copy that is kept.
        flat = torch.frombuffer(bytearray(content[file.name]), dtype=torch.uint8)
        return flat.to(dtype).view(file.shape)

    pixels = decode(images, torch.float32).unsqueeze_(1)
    return TensorDataset(pixels.div_(255).sub_(_MEAN).div_(_STD), decode(labels, torch.int64))
