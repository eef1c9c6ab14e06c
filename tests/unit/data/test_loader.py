"""A batch indexed out of tensors equals the collated single samples, layout included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from paceline.data.data_spec import open_data
from paceline.data.loader import BatchMaker

TENSORS = {
    "pictures": torch.randn(20, 3, 4, 4),
    "turned": torch.randn(4, 20).t(),
    "labels": torch.arange(20),
    "half": torch.randn(20, 2).bfloat16(),
    "flags": torch.arange(20) % 3 == 0,
}


@pytest.mark.parametrize("name", TENSORS)
def test_rows_indexed_at_once_equal_the_collated_samples(name: str) -> None:
    data = TensorDataset(TENSORS[name])
    positions = np.array([7, 0, 19, 7, 3])
    (batch,) = BatchMaker(open_data(data, 5), seed=1).make(positions, 0, 0)
    (expected,) = default_collate([data[int(i)] for i in positions])
    assert torch.equal(batch, expected)
    assert batch.dtype == expected.dtype
    assert batch.is_contiguous() == TENSORS[name][torch.from_numpy(positions)].is_contiguous()
