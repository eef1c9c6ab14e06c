"""Small tables that scikit-learn's wheel contains, as tensors in memory. scikit-learn itself is not imported."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from paceline.datasets.images import Splits
from paceline.errors import DatasetUnavailableError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch.utils.data import TensorDataset

Split = Literal["train", "test"]

_TEST_EVERY = 5  # every fifth sample is one of the test set


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the wheel, with the SHA-256 of its content (decompressed), its first row and its separator."""

    name: str
    sha256: str
    skip: int = 0
    separator: str | None = ","


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A table of numbers. Its last column is what is predicted: a class, or a number if `classes` is 0."""

    name: str
    files: tuple[_File, ...]
    classes: int
    licence: str


_BSD = "scikit-learn's copy, BSD-3-Clause"
DIGITS = SmallTable(
    "digits",
    (_File("digits.csv.gz", "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"),),
    10,
    f"Optical Recognition of Handwritten Digits (Alpaydin and Kaynak), UCI repository, CC BY 4.0; {_BSD}",
)
IRIS = SmallTable(
    "iris",
    (_File("iris.csv", "f13ffa8fdd56fd8e6c8d16d4081a3fbd3114bcd0aae4256c43205169cd9d1449", 1),),
    3,
    f"Iris (Fisher, 1936), UCI repository, CC BY 4.0; {_BSD}",
)
WINE = SmallTable(
    "wine",
    (_File("wine_data.csv", "10e8a802908b34f86e5da8ce962f3c806694bc98450a18f61851af59f324bede", 1),),
    3,
    f"Wine (Forina and others), UCI repository, CC BY 4.0; {_BSD}",
)
BREAST_CANCER = SmallTable(
    "breast_cancer",
    (_File("breast_cancer.csv", "fed3eb72d0575ef6192293f5093c6e801b1476b577d0386bf4455504522172ed", 1),),
    2,
    f"Breast Cancer Wisconsin, Diagnostic (Wolberg, Street and Mangasarian), UCI repository, CC BY 4.0; {_BSD}",
)
DIABETES = SmallTable(
    "diabetes",
    (
        _File("diabetes_data_raw.csv.gz", "86badf50b4f9436ddd1e497dc0ae1b93166f8120221ee7dca4634fe849f3be7c", 0, None),
        _File("diabetes_target.csv.gz", "244713a551f62a291a354212d8a048adec6cb1244b2bc44e66a0698f5006d26d", 0, None),
    ),
    0,
    f"Diabetes (Efron, Hastie, Johnstone and Tibshirani, 2004); {_BSD}",
)


def _folder() -> Path:
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DatasetUnavailableError(
            "this data set is in the wheel of scikit-learn, which is not installed: pip install 'paceline[datasets]'"
        )
    return Path(found.origin).parent / "datasets" / "data"


def _read(file: _File, folder: Path) -> npt.NDArray[np.float64]:
    import numpy as np

    path = folder / file.name
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if file.name.endswith(".gz") else raw
    except (OSError, EOFError) as error:
        raise DatasetUnavailableError(
            f"{path} cannot be read ({error}): install another version, pip install 'paceline[datasets]'"
        ) from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DatasetUnavailableError(
            f"{path} has SHA-256 {digest} instead of {file.sha256}: it is another version of the data. Remove "
            "scikit-learn, and install it again: pip install 'paceline[datasets]'"
        )
    lines = content.decode().splitlines()[file.skip :]
    return np.array([line.split(file.separator) for line in lines], dtype=np.float64)


def load(table: SmallTable, split: Split | None, folder: Path | None = None) -> Splits | TensorDataset:
    """The table as tensors; `folder` is where its files are, by default that of scikit-learn.

    Raises:
        DatasetUnavailableError: a file is missing or another one; the message has the remedy.
    """
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    if split not in ("train", "test", None):
        raise ValueError(f"split must be 'train', 'test' or None, not {split!r}")
    where = _folder() if folder is None else folder
    numbers = torch.from_numpy(np.concatenate([_read(file, where) for file in table.files], axis=1))
    x, y = numbers[:, :-1].float(), numbers[:, -1]
    x = x.view(-1, 1, 8, 8) / 16 if table is DIGITS else x
    y = y.long() if table.classes else y.float()
    is_test = torch.arange(len(y)) % _TEST_EVERY == _TEST_EVERY - 1
    made = Splits(
        TensorDataset(x[~is_test], y[~is_test]),
        TensorDataset(x[is_test], y[is_test]),
        f"scikit-learn: {where}",
        table.licence,
    )
    return made if split is None else made[split == "test"]


@overload
def digits(split: None = None) -> Splits: ...
@overload
def digits(split: Split) -> TensorDataset: ...
def digits(split: Split | None = None) -> Splits | TensorDataset:
    """1,797 images of digits, float32 of shape (1, 8, 8) in [0, 1], with labels 0 to 9."""
    return load(DIGITS, split)


@overload
def iris(split: None = None) -> Splits: ...
@overload
def iris(split: Split) -> TensorDataset: ...
def iris(split: Split | None = None) -> Splits | TensorDataset:
    """150 flowers: 4 measurements, and one of 3 species."""
    return load(IRIS, split)


@overload
def wine(split: None = None) -> Splits: ...
@overload
def wine(split: Split) -> TensorDataset: ...
def wine(split: Split | None = None) -> Splits | TensorDataset:
    """178 wines: 13 measurements, and one of 3 cultivars."""
    return load(WINE, split)


@overload
def breast_cancer(split: None = None) -> Splits: ...
@overload
def breast_cancer(split: Split) -> TensorDataset: ...
def breast_cancer(split: Split | None = None) -> Splits | TensorDataset:
    """569 tumours: 30 measurements; 0 is malignant, 1 benign."""
    return load(BREAST_CANCER, split)


@overload
def diabetes(split: None = None) -> Splits: ...
@overload
def diabetes(split: Split) -> TensorDataset: ...
def diabetes(split: Split | None = None) -> Splits | TensorDataset:
    """442 patients: 10 measurements, and the progress of the disease as a number."""
    return load(DIABETES, split)
