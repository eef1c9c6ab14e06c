"""The tensors of the script's model, each with its module, its memory, and its content at the version held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from paceline.blocks.tensors import DTYPE_NAMES, DTYPES, clean_name
from paceline.errors import UsageError
from paceline.types import Kind, TensorSpec

_TRAINED = (Kind.PARAMETER, Kind.FROZEN)


@dataclass(slots=True)
class Entry:
    """One parameter or buffer of the model: attribute `leaf` of module `owner`.

    `flat` is its content in one dimension: the memory of `tensor` itself if `direct`, else a copy. `shadow` is a copy
    of a buffer's content at the version held. `version` is torch's version counter at the start of the turn, `place`
    the address of its memory; by both a write of the script is found.
    """

    number: int
    spec: TensorSpec
    owner: torch.nn.Module
    leaf: str
    tensor: torch.Tensor
    flat: torch.Tensor
    direct: bool
    shadow: torch.Tensor | None = None
    version: int = 0
    place: int = 0

    def current(self) -> torch.Tensor | None:
        """The tensor that the module has now: the script may have assigned another one to a buffer."""
        table = self.owner._parameters if self.spec.kind in _TRAINED else self.owner._buffers
        return table[self.leaf]


def collect(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Entry]:
    """List every parameter and then every buffer, in the order of the model. A tied tensor is listed once.

    Raises:
        UsageError: a job cannot train one of them; the message names it.
    """
    groups = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    entries: list[Entry] = []
    seen: dict[int, str] = {}
    storages: dict[tuple[Any, ...], str] = {}
    for prefix, module in model.named_modules(remove_duplicate=True):
        for leaf, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            name = clean_name(f"{prefix}.{leaf}" if prefix else leaf)
            seen[id(parameter)] = name
            if isinstance(parameter, UninitializedParameter):
                raise UsageError(f"{name} is lazy and has not run yet: pass one batch through the model, then prepare")
            where = (str(parameter.device), parameter.untyped_storage().data_ptr())
            if parameter.numel() and where in storages:
                raise UsageError(
                    f"{name} and {storages[where]} are distinct parameters that share memory: tie them by assigning "
                    "the same Parameter object, or clone one"
                )
            storages[where] = name
            # An integer or bool tensor never has a gradient, so torch's optimizers step over it.
            group = groups.get(id(parameter), -1) if parameter.is_floating_point() else -1
            kind = Kind.PARAMETER if group >= 0 else Kind.FROZEN
            entries.append(_entry(len(entries), name, module, leaf, parameter, kind, group))
    foreign = [k for k in groups if k not in seen]
    if foreign:
        raise UsageError(
            f"the optimizer has {len(foreign)} parameter(s) that are not the model's: prepare the model that it trains"
        )
    if not groups:
        raise UsageError("the optimizer has no parameter: make it with the parameters of the model")
    buffers: set[int] = set()
    for prefix, module in model.named_modules(remove_duplicate=True):
        for leaf, buffer in module._buffers.items():
            if buffer is None or id(buffer) in buffers:
                continue
            buffers.add(id(buffer))
            name = clean_name(f"{prefix}.{leaf}" if prefix else leaf)
            if isinstance(buffer, UninitializedBuffer):
                raise UsageError(f"{name} is lazy and has not run yet: pass one batch through the model, then prepare")
            kind = Kind.MEAN if buffer.is_floating_point() else Kind.LAST
            entries.append(_entry(len(entries), name, module, leaf, buffer, kind, -1))
    # The digest and the layout follow the model's own order: all parameters, then all buffers.
    return entries


def _entry(
    number: int, name: str, owner: torch.nn.Module, leaf: str, tensor: torch.Tensor, kind: Kind, group: int
) -> Entry:
    if tensor.dtype not in DTYPE_NAMES:
        raise UsageError(f"{name} has dtype {tensor.dtype}, which cannot be sent; use one of {', '.join(DTYPES)}")
    if tensor.device.type == "meta":
        raise UsageError(f"{name} is on the meta device: give it memory first (model.to_empty(device=...))")
    spec = TensorSpec(name, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], kind, group)
    direct = tensor.device.type == "cpu" and tensor.is_contiguous()
    flat = tensor.data.view(-1) if direct else torch.empty(tensor.numel(), dtype=tensor.dtype)
    if not direct:
        flat.copy_(tensor.detach().reshape(-1))
    place = tensor.data_ptr()
    return Entry(number, spec, owner, leaf, tensor, flat, direct, version=tensor._version, place=place)
