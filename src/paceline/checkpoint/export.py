"""Reads the weights of a checkpoint by name, and the optimizer's state in the layout of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from paceline.blocks.tensors import DTYPES, piece_of
from paceline.checkpoint.manifest import Manifest
from paceline.checkpoint.shards import read_shards
from paceline.checkpoint.storage import Storage
from paceline.core.layout import cut
from paceline.types import Hyper, ModelSpec


class Exported:
    """The tensors of one version.

    `weights` has each parameter and buffer under its name; a tied one under its first name. `state` has the optimizer's
    state as ``NUMBER.NAME``: numbers count the parameters as torch's `state_dict` does, group by group, in the order of
    the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.weights = {t.name: torch.empty(t.shape, dtype=DTYPES[t.dtype]) for t in spec.tensors}
        self.state: dict[str, torch.Tensor] = {}
        trained = [n for n, t in enumerate(spec.tensors) if t.group >= 0]
        ordered = sorted(trained, key=lambda n: spec.tensors[n].group)
        self.numbers = {number: index for index, number in enumerate(ordered)}

    def put(self, number: int, start: int, values: torch.Tensor) -> None:
        """Take a part of tensor `number`, from element `start` on."""
        self.weights[self.spec.tensors[number].name].view(-1)[start : start + values.numel()] = values

    def put_state(self, number: int, name: str, start: int, numel: int, values: torch.Tensor) -> None:
        """Take the state called `name` of a part of tensor `number`; a single number is that of the whole tensor."""
        key, spec = f"{self.numbers[number]}.{name}", self.spec.tensors[number]
        if values.ndim == 0:
            self.state[key] = values
            return
        if key not in self.state:
            self.state[key] = torch.zeros(spec.shape, dtype=values.dtype)
        self.state[key].view(-1)[start : start + numel] = values.view(-1)

    def metadata(self, hyper: Hyper) -> dict[str, str]:
        """What a file of `state` must say besides: the param groups, with these hyper-parameters, and their names."""
        groups, names = [], []
        for group, values in enumerate(hyper):
            mine = [n for n in self.numbers if self.spec.tensors[n].group == group]
            groups.append({**values, "params": [self.numbers[n] for n in mine]})
            names.append([self.spec.tensors[n].name for n in mine])
        return {"format": "pt", "param_groups": json.dumps(groups), "names": json.dumps(names)}


def read_tensors(storage: Storage, folder: str, manifest: Manifest) -> Exported:
    """All tensors of a checkpoint, with the state of the optimizer. Every file is checked.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    found = Exported(manifest.model)
    blocks = cut(manifest.model.tensors)
    for index, state in read_shards(storage, folder, manifest, range(len(blocks))):
        for number, piece in enumerate(blocks[index].pieces):
            found.put(piece.tensor, piece.start, piece_of(state.value, piece))
            for name, values in _of_piece(state.state, number):
                found.put_state(piece.tensor, name, piece.start, piece.numel, values)
    return found


def _of_piece(state: Mapping[tuple[int, str], torch.Tensor], piece: int) -> list[tuple[str, torch.Tensor]]:
    return [(name, values) for (number, name), values in state.items() if number == piece]
