"""A batch indexed out of tensors equals the collated samples; the options of a DataLoader are used or refused."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate, get_worker_info

from paceline.data.data_spec import open_data
from paceline.data.loader import BatchMaker
from paceline.errors import UsageError

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


class Opened(Dataset[Any]):
    """Gives what the `worker_init_fn` of a DataLoader has set."""

    opened = "not opened"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, position: int) -> tuple[int, str]:
        return position, self.opened


def _open(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.opened = f"opened {number}"  # type: ignore[attr-defined]


def test_the_worker_init_fn_of_a_loader_finds_the_data_set_of_its_process() -> None:
    maker = BatchMaker(open_data(DataLoader(Opened(), batch_size=2, num_workers=1, worker_init_fn=_open), None), seed=1)
    try:
        assert maker.make(np.array([5, 2]), 0, 0)[1] == ("opened 0", "opened 0")
    finally:
        maker.close()


def test_the_worker_init_fn_of_a_loader_without_processes_is_not_called() -> None:
    maker = BatchMaker(open_data(DataLoader(Opened(), batch_size=2, worker_init_fn=_open), None), seed=1)
    assert maker.make(np.array([5, 2]), 0, 0)[1] == ("not opened", "not opened")


def test_the_timeout_of_a_loader_is_used() -> None:
    class Slow(Opened):
        def __getitem__(self, position: int) -> tuple[int, str]:
            time.sleep(30)
            return position, ""

    maker = BatchMaker(open_data(DataLoader(Slow(), batch_size=2, num_workers=1, timeout=1), None), seed=1)
    try:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            maker.make(np.array([5, 2]), 0, 0)
    finally:
        maker.close()


def test_a_loader_whose_processes_are_not_forked_is_refused_by_name() -> None:
    loader = DataLoader(Opened(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(UsageError, match=r"multiprocessing_context 'spawn' is refused.*remove it"):
        open_data(loader, None)
    open_data(DataLoader(Opened(), batch_size=2, num_workers=1, multiprocessing_context="fork"), None)


def test_arguments_other_than_the_defaults_go_over_those_of_the_loader() -> None:
    loader = DataLoader(Opened(), batch_size=2, shuffle=True)
    assert open_data(loader, None).shuffle
    spec = open_data(loader, 4, shuffle=False, collate_fn=len, drop_last=True, loader_workers=2)
    assert (spec.batch_size, spec.shuffle, spec.drop_last, spec.loader_workers) == (4, False, True, 2)
    assert spec.collate is len
    with pytest.raises(UsageError, match="drop_last leaves nothing"):
        open_data(DataLoader(Opened(), batch_size=9), None, drop_last=True)
