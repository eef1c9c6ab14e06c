from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from paceline import datasets
from paceline.datasets.small import DIGITS, _folder, load
from paceline.errors import DatasetUnavailableError


@pytest.mark.parametrize(
    ("name", "count", "shape", "classes"),
    [
        ("digits", 1797, (1, 8, 8), 10),
        ("iris", 150, (4,), 3),
        ("wine", 178, (13,), 3),
        ("breast_cancer", 569, (30,), 2),
        ("diabetes", 442, (10,), 0),
    ],
)
def test_a_table_has_its_samples_and_a_licence(name: str, count: int, shape: tuple[int, ...], classes: int) -> None:
    pair = getattr(datasets, name)()
    train, test = pair
    assert len(train) + len(test) == count
    assert len(test) == count // 5
    x, y = train.tensors
    assert tuple(x.shape[1:]) == shape
    if classes:
        assert sorted(set(y.tolist())) == list(range(classes))
    assert "BSD" in pair.licence
    assert pickle.loads(pickle.dumps(pair)).licence == pair.licence
    assert len(getattr(datasets, name)("test")) == len(test)


def test_another_version_of_a_file_is_refused(tmp_path: Path) -> None:
    content = gzip.decompress((_folder() / "digits.csv.gz").read_bytes())
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(content.replace(b"16", b"15", 1)))
    with pytest.raises(DatasetUnavailableError, match=r"SHA-256 \w+ instead of"):
        load(DIGITS, None, tmp_path)
    with pytest.raises(DatasetUnavailableError, match="cannot be read"):
        load(DIGITS, None, tmp_path / "none")
