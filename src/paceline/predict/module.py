"""Builds the model of a script with given weights, and finds its signature by running it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.tensors import DTYPE_NAMES, DTYPES, clean_name
from paceline.core.layout import cut
from paceline.core.predict.signature import ANY, DATATYPE_OF, Signature, TensorSignature
from paceline.data.servable import Servable
from paceline.errors import MismatchError, UsageError
from paceline.types import ModelSpec, TensorSpec

Weights = Mapping[str, torch.Tensor]
"""The tensors of a model by name: parameters, then buffers; a tied one once."""


def join_blocks(spec: ModelSpec, blocks: Iterable[tuple[int, BlockState]]) -> dict[str, torch.Tensor]:
    """The tensors of a model out of its blocks, which may come in any order."""
    layout = cut(spec.tensors)
    tensors = [torch.empty(t.shape, dtype=DTYPES[t.dtype]) for t in spec.tensors]
    flat = [t.view(-1) for t in tensors]
    for index, block in blocks:
        for piece in layout[index].pieces:
            part = block.value[piece.offset : piece.offset + piece.numel]
            flat[piece.tensor][piece.start : piece.start + piece.numel] = part
    return {t.name: tensor for t, tensor in zip(spec.tensors, tensors, strict=True)}


def own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model by name, in the order of a `ModelSpec`; a tied one once."""
    found = [*model.named_parameters(), *model.named_buffers()]
    return {clean_name(name): tensor.detach() for name, tensor in found}


def build(servable: Servable) -> torch.nn.Module:
    """Build the model, to predict; the random numbers of this process stay as they are.

    Raises:
        UsageError: the factory returns something else than a model.
    """
    with torch.random.fork_rng(devices=[]):
        model = servable.factory()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"the factory of job.servable returned {type(model).__name__}; it must return a torch module")
    return model.eval().requires_grad_(False)


def check_tensors(model: torch.nn.Module, wanted: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """The tensors of `model`, which must be the `wanted` ones.

    Raises:
        MismatchError: the model is another one; the message names the first difference.
    """
    mine = own_tensors(model)
    for spec in wanted:
        tensor = mine.get(spec.name)
        if tensor is None:
            raise MismatchError(f"the model of job.servable has no {spec.name}, which the job trained: build the same")
        if tuple(tensor.shape) != spec.shape or DTYPE_NAMES.get(tensor.dtype) != spec.dtype:
            raise MismatchError(
                f"{spec.name} is {list(tensor.shape)} {tensor.dtype} in the model of job.servable, and "
                f"{list(spec.shape)} {spec.dtype} in the job: build the same model"
            )
    if extra := mine.keys() - {spec.name for spec in wanted}:
        raise MismatchError(f"the model of job.servable has {min(extra)}, which the job did not train: build the same")
    return mine


def fill(model: torch.nn.Module, weights: Weights) -> None:
    """Copy `weights` into `model`.

    Raises:
        MismatchError: the model has other tensors.
    """
    specs = [_spec(name, tensor) for name, tensor in weights.items()]
    for name, tensor in check_tensors(model, specs).items():
        tensor.copy_(weights[name])


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    from paceline.types import Kind

    return TensorSpec(name, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], Kind.FROZEN)


# ------------------------------------------------------------------ the signature


def named_inputs(model: torch.nn.Module, example: Any) -> dict[str, torch.Tensor]:
    """The example's tensors by the names of the arguments of `forward`.

    Raises:
        UsageError: `forward` does not take them.
    """
    names = _arguments(model)
    if isinstance(example, Mapping):
        return {
            name: example[name] for name in sorted(example, key=lambda n: names.index(n) if n in names else len(names))
        }
    values = [example] if isinstance(example, torch.Tensor) else list(example)
    if len(names) < len(values):
        raise UsageError(f"the example of job.servable has {len(values)} inputs, and forward takes {len(names)}")
    return dict(zip(names, values, strict=False))


def _arguments(model: torch.nn.Module) -> list[str]:
    return [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]


def leading_arguments(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of `inputs`, if they are the first arguments of `forward`.

    Raises:
        UsageError: they are not: an argument between them has a default.
    """
    names = _arguments(model)[: len(inputs)]
    if set(names) != inputs.keys():
        raise UsageError(f"a pt2 file takes the first arguments of forward: the example must have {', '.join(names)}")
    return names


def named_outputs(result: Any) -> dict[str, torch.Tensor]:
    """The outputs of a model by name: ``output``, or ``output_0`` …, or the keys of a dictionary.

    Raises:
        UsageError: the model returns something else than tensors.
    """
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, Mapping):
        named = {str(key): value for key, value in result.items()}
    elif isinstance(result, Sequence):
        named = {f"output_{n}": value for n, value in enumerate(result)}
    else:
        named = {}
    if not named or not all(isinstance(value, torch.Tensor) for value in named.values()):
        raise UsageError(
            f"the model returns {type(result).__name__}: a served model returns a tensor, or a tuple "
            "or a dictionary of tensors"
        )
    return named


def call(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Compute the outputs of a model from the arguments of its `forward`, by name."""
    return named_outputs(model(**inputs))


def describe(model: torch.nn.Module, servable: Servable) -> Signature:
    """The signature of a model. It runs the model on one, two and three rows of the example.

    Raises:
        UsageError: the model cannot be run on the example, or has tensors that the protocol does not know.
    """
    inputs = named_inputs(model, servable.example)
    try:
        with torch.inference_mode():
            plain = call(model, inputs)
            tried = [_try_rows(model, inputs, rows) for rows in (1, 2, 3)]
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the model cannot be run on the example of job.servable: {error}") from error
    batched = all(
        out is not None and all(t.dim() > 0 and t.shape[0] == rows for t in out.values())
        for rows, out in zip((1, 2, 3), tried, strict=True)
    )
    first = ANY if batched else None
    return Signature(
        tuple(_tensor(name, value, first) for name, value in inputs.items()),
        tuple(_tensor(name, value, first) for name, value in plain.items()),
        batched,
    )


def rows_of(inputs: Mapping[str, torch.Tensor], rows: int) -> dict[str, torch.Tensor]:
    """The first row of each input, `rows` times."""
    return {name: value[:1].expand(rows, *value.shape[1:]).contiguous() for name, value in inputs.items()}


def _try_rows(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], rows: int) -> dict[str, torch.Tensor] | None:
    """The outputs on `rows` rows; None if the model does not take so many."""
    if any(value.dim() == 0 for value in inputs.values()):
        return None
    try:
        return call(model, rows_of(inputs, rows))
    except UsageError:
        raise
    except Exception:  # the model takes its example only as a whole
        return None


def _tensor(name: str, value: torch.Tensor, first: int | None) -> TensorSignature:
    dtype = DTYPE_NAMES.get(value.dtype, str(value.dtype))
    if dtype not in DATATYPE_OF:
        raise UsageError(f"{name} has dtype {value.dtype}: the protocol has {', '.join(DATATYPE_OF)}")
    shape = tuple(value.shape)
    return TensorSignature(name, DATATYPE_OF[dtype], shape if first is None else (first, *shape[1:]))
