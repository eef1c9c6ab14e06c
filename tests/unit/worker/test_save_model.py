"""The file of `job.save`: complete or as before, with one error that names the file and the cause."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from paceline.errors import SaveError, UsageError
from paceline.worker.save_model import refuse_suffix, save_model, with_suffix


def test_a_full_disk_is_one_error_and_leaves_the_old_file(small_disk: Path) -> None:
    path = small_disk / "model.safetensors"
    save_model(nn.Linear(4, 1), path)
    before = path.read_bytes()
    with pytest.raises(SaveError, match=rf"^job.save cannot write {path}: No space left on device"):
        save_model(nn.Linear(1000, 1000), path)
    assert path.read_bytes() == before
    assert list(small_disk.iterdir()) == [path], "no temporary file is left"


def test_a_read_only_disk_is_one_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for path in (small_disk / "model.safetensors", small_disk / "deep" / "model.safetensors"):
        with pytest.raises(SaveError, match=rf"^job.save cannot write {path}: Read-only file system"):
            save_model(nn.Linear(4, 1), path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=rf"(Not a directory|File exists) \({tmp_path}/file\)") as raised:
        save_model(nn.Linear(4, 1), tmp_path / "file" / "model.safetensors")
    assert isinstance(raised.value, OSError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("name", ["model.pt", "model", "model.safetensors.bin"])
def test_another_suffix_is_refused_and_the_message_shows_both_lines(name: str, tmp_path: Path) -> None:
    path, model = tmp_path / name, nn.Linear(4, 1)
    save_model(model, with_suffix(path))
    with pytest.raises(UsageError) as raised:
        refuse_suffix(path)
    right = path.with_suffix(".safetensors")
    assert f'job.save("{right}")' in str(raised.value)
    assert f'model.load_state_dict(safetensors.torch.load_file("{right}"))' in str(raised.value)
    assert f"The weights are in {path}.safetensors." in str(raised.value)
    assert torch.equal(load_file(f"{path}.safetensors")["weight"], model.weight)


def test_the_right_suffix_is_kept() -> None:
    assert with_suffix(Path("a/model.safetensors")) == Path("a/model.safetensors")
    refuse_suffix(Path("a/model.safetensors"))
