"""How two models or optimizers differ, in words that a user knows from the script."""

from __future__ import annotations

from paceline.errors import MismatchError
from paceline.types import Hyper, Kind, ModelSpec, TensorSpec

_SAME = "every worker, and every resume of the run, must prepare the same"


def compare_models(known: ModelSpec, new: ModelSpec, worker: str) -> None:
    """Compare the model that `worker` prepared (`new`) with the job's (`known`).

    Raises:
        MismatchError: the models differ; the message names the first difference.
    """
    if new == known:
        return
    for mine, theirs in zip(new.tensors, known.tensors, strict=False):
        if mine != theirs:
            raise MismatchError(
                f"{worker} prepared a model with {_tensor(mine)} where the job has {_tensor(theirs)}: {_SAME} model"
            )
    if len(new.tensors) != len(known.tensors):
        raise MismatchError(
            f"{worker} prepared a model of {len(new.tensors)} tensors, the job has {len(known.tensors)}: {_SAME} model"
        )
    if new.optimizer.name != known.optimizer.name:
        raise MismatchError(
            f"{worker} prepared the optimizer {new.optimizer.name}, the job has {known.optimizer.name}: {_SAME} one"
        )
    if new.optimizer != known.optimizer:
        mine_, theirs_ = hyper_difference(new.optimizer.hyper, known.optimizer.hyper)
        raise MismatchError(
            f"{worker} prepared {new.optimizer.name} with {mine_}, the job has {theirs_}: {_SAME} optimizer"
        )
    if new.clip_norm != known.clip_norm:
        raise MismatchError(
            f"{worker} prepared with clip_norm={new.clip_norm}, the job has clip_norm={known.clip_norm}: {_SAME} number"
        )
    here, there = ("", "not ") if new.deterministic else ("not ", "")
    raise MismatchError(
        f"kernels are {here}deterministic in {worker} and {there}deterministic in the job: use the same kind of device "
        "and the same torch.use_deterministic_algorithms(...) everywhere"
    )


def hyper_difference(first: Hyper, second: Hyper) -> tuple[str, str]:
    """The first difference of two optimizers of one class: what `first` has, and what `second` has there."""
    if len(first) != len(second):
        return f"{len(first)} param groups", f"{len(second)} param groups"
    for number, (mine, theirs) in enumerate(zip(first, second, strict=True)):
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                where = f" in param group {number}" if len(first) > 1 else ""
                return f"{name}={mine.get(name)}{where}", f"{name}={theirs.get(name)}"
    return "the same numbers", "the same numbers"


def _tensor(spec: TensorSpec) -> str:
    shape = "x".join(map(str, spec.shape)) or "scalar"
    kind = "buffer"
    if spec.kind in (Kind.PARAMETER, Kind.FROZEN):
        kind = f"parameter of group {spec.group}" if spec.group >= 0 else "parameter that is not the optimizer's"
    return f"{spec.name} ({shape} {spec.dtype}, {kind})"
