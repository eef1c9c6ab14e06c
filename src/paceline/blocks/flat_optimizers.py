"""SGD, Adam and AdamW over chunks: the operations of `torch.optim`, in the same order, on fewer and longer tensors.

`torch.optim` updates each parameter in place, with one call of torch for each operation and tensor. Here adjacent
pieces with equal hyper-parameters are one tensor (a run), and new weights are written to other memory than old ones.
The bits are the same: `tests/unit/blocks/test_flat_optimizers.py` shows it. Updates for which `fits` is False are left
to `torch.optim`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from paceline.blocks.chunks import Chunk
from paceline.blocks.threads import Scratch
from paceline.types import Hyper

Numbers = Mapping[str, Any]


class _Run(NamedTuple):
    """Adjacent elements of a chunk, updated with the same hyper-parameters.

    `group` is the param group, or -1 if the elements do not change. `updates` is how often they were updated before.
    """

    start: int
    end: int
    group: int
    updates: int


_ADAM = {"lr", "betas", "eps", "weight_decay", "maximize"}
_NEEDED = {
    "SGD": {"lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize"},
    "Adam": _ADAM,
    "AdamW": _ADAM,
}


def fits(name: str, hyper: Hyper) -> bool:
    """Whether this module can do the update of optimizer `name` with these hyper-parameters."""
    needed = _NEEDED.get(name)
    if needed is None:
        return False
    for group in hyper:
        if not needed <= group.keys():
            return False
        if group.get("fused") or group.get("foreach") or group.get("differentiable") or group.get("capturable"):
            return False
        if name != "SGD" and (group.get("amsgrad") or not group.get("eps")):
            return False
    return True


class FlatOptimizer(ABC):
    """The state and the update of one chunk of parameters.

    State is flat and as long as the chunk; it is zero for a piece that was never updated. `_updates` counts the updates
    of each piece (SGD counts to 1 only). `_all_runs` are the runs of a step in which all pieces have a gradient.
    """

    def __init__(self, chunk: Chunk, groups: Sequence[int]) -> None:
        """`groups[i]` is the param group of piece i."""
        self._chunk = chunk
        self._groups = groups
        self._joint = elements_agree(chunk.dtype)
        self._updates = [0] * len(groups)
        self._flats: dict[str, torch.Tensor] = {}
        self._early_flats: dict[str, torch.Tensor] = {}
        self._written: set[str] | None = None
        self._early_names: set[str] = set()
        self._all_runs: list[_Run] | None = None

    @abstractmethod
    def _update(
        self, numbers: Numbers, old: torch.Tensor, new: torch.Tensor, grad: torch.Tensor, run: _Run, work: torch.Tensor
    ) -> None:
        """Write `new`. `work` is as long as `new`, for temporary results; `old` and `grad` are not written."""

    @abstractmethod
    def _counted(self, updates: int, numbers: Numbers) -> int:
        """The count of updates of a piece after one more update."""

    def step(
        self,
        hyper: Hyper,
        old: torch.Tensor,
        new: torch.Tensor,
        grad: torch.Tensor,
        present: Sequence[bool] | None,
        scratch: Scratch,
    ) -> None:
        """Write to `new` the update of `old` by `grad`. Pieces that are not `present` do not change; None: all are."""
        runs = self._all_runs if present is None and self._all_runs is not None else self._runs(present)
        self._go_over(runs, hyper, old, new, grad, scratch)
        self._count_update(hyper, runs, present)

    def step_early(
        self, hyper: Hyper, old: torch.Tensor, new: torch.Tensor, grad: torch.Tensor, scratch: Scratch
    ) -> bool:
        """As `step` with all pieces, but the new state is kept in other memory until `accept_early`.

        False, and nothing is done, if only some of the pieces would have new state.
        """
        if self._all_runs is None:
            self._all_runs = self._runs(None)
        if len({bool(hyper[run.group].get("momentum", True)) for run in self._all_runs}) > 1:
            return False
        self._written = set()
        self._go_over(self._all_runs, hyper, old, new, grad, scratch)
        self._early_names, self._written = self._written, None
        return True

    def accept_early(self, hyper: Hyper, *, reuse: bool) -> None:
        """Use the new state of the last `step_early`. With `reuse`, the replaced memory is used again."""
        assert self._all_runs is not None
        for name in self._early_names:
            replaced, self._flats[name] = self._state_of(name), self._early_flats.pop(name)
            if reuse:
                self._early_flats[name] = replaced
        self._count_update(hyper, self._all_runs, None)

    def _go_over(
        self,
        runs: Sequence[_Run],
        hyper: Hyper,
        old: torch.Tensor,
        new: torch.Tensor,
        grad: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        whole, dtype = self._chunk.numel, self._chunk.dtype
        for run in runs:
            length = run.end - run.start
            o, n, g = (old, new, grad) if length == whole else (t[run.start : run.end] for t in (old, new, grad))
            if run.group < 0:
                n.copy_(o)
            else:
                self._update(hyper[run.group], o, n, g, run, scratch.take("work", dtype, length))

    def _runs(self, present: Sequence[bool] | None) -> list[_Run]:
        """The runs of a step: adjacent pieces with the same group and count, with the padding between them."""
        runs: list[_Run] = []
        for number, span in enumerate(self._chunk.pieces):
            here = present is None or present[number]
            group, updates = (self._groups[number], self._updates[number]) if here else (-1, 0)
            if self._joint and runs and (runs[-1].group, runs[-1].updates) == (group, updates):
                runs[-1] = runs[-1]._replace(end=span.end)
            else:
                runs.append(_Run(span.start, span.end, group, updates))
        if self._joint and len(runs) == 1:
            runs[0] = runs[0]._replace(start=0, end=self._chunk.numel)
        return runs

    def _count_update(self, hyper: Hyper, runs: list[_Run], present: Sequence[bool] | None) -> None:
        """Count the updates of a step, and remember its runs for the next step if all pieces had a gradient."""
        updates = self._updates
        if runs is self._all_runs:
            counted = {run.updates: self._counted(run.updates, hyper[run.group]) for run in runs}
            if len(counted) == 1 and len({run.group for run in runs}) == 1:
                (before, after), *_ = counted.items()
                if before != after:
                    self._updates = [after] * len(updates)
                    self._all_runs = [run._replace(updates=after) for run in runs]
                return
        for number, group in enumerate(self._groups):
            if present is None or present[number]:
                updates[number] = self._counted(updates[number], hyper[group])
        self._all_runs = self._runs(None) if present is None else None

    # ------------------------------------------------------------ state

    def _state_of(self, name: str) -> torch.Tensor:
        flat = self._flats.get(name)
        if flat is None:
            flat = self._flats[name] = torch.zeros(self._chunk.numel, dtype=self._chunk.dtype)
        return flat

    def _state(self, name: str, run: _Run) -> torch.Tensor:
        return self._slice(self._state_of(name), run)

    def _next(self, name: str, run: _Run) -> torch.Tensor:
        """Memory for the next state: that of the current state, or, in an early step, other memory."""
        if self._written is None:
            return self._state(name, run)
        self._written.add(name)
        flat = self._early_flats.get(name)
        if flat is None:
            flat = self._early_flats[name] = torch.zeros(self._chunk.numel, dtype=self._chunk.dtype)
        return self._slice(flat, run)

    def _slice(self, flat: torch.Tensor, run: _Run) -> torch.Tensor:
        return flat if run.end - run.start == self._chunk.numel else flat[run.start : run.end]

    def state(self, piece: int) -> dict[str, torch.Tensor]:
        """The optimizer state of one piece, by the names of torch; empty before its first update."""
        if not self._updates[piece]:
            return {}
        span = self._chunk.pieces[piece]
        return {name: flat[span.start : span.end] for name, flat in self._flats.items()}

    def replace_state(self, reuse: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Replace all state by a copy, made in `reuse` where that fits; returns the tensors that were replaced."""
        used, spare = self._flats, reuse[0] if reuse else {}
        self._flats = {n: spare[n].copy_(flat) if n in spare else flat.clone() for n, flat in used.items()}
        return [used]

    def load(self, piece: int, state: Mapping[str, torch.Tensor]) -> None:
        """Restore state that `state` returned, or some of it."""
        span = self._chunk.pieces[piece]
        self._all_runs, self._early_flats = None, {}
        if "step" in state:
            self._updates[piece] = int(state["step"])
        elif state:
            self._updates[piece] = max(1, self._updates[piece])
        for name, tensor in state.items():
            if name != "step":
                self._state(name, _Run(span.start, span.end, 0, 0)).copy_(tensor)


class FlatSgd(FlatOptimizer):
    """As `torch.optim.sgd._single_tensor_sgd`. The count of a piece is 1 once it has a momentum buffer."""

    def _counted(self, updates: int, numbers: Numbers) -> int:
        return 1 if numbers["momentum"] != 0 else updates

    def _update(
        self, numbers: Numbers, old: torch.Tensor, new: torch.Tensor, grad: torch.Tensor, run: _Run, work: torch.Tensor
    ) -> None:
        momentum = numbers["momentum"]
        if numbers["maximize"]:
            grad = torch.neg(grad, out=work)
        if numbers["weight_decay"] != 0:
            grad = torch.add(grad, old, alpha=numbers["weight_decay"], out=work)
        if momentum != 0:
            buffer, last = self._next("momentum_buffer", run), self._state("momentum_buffer", run)
            if run.updates:
                torch.mul(last, momentum, out=buffer).add_(grad, alpha=1 - numbers["dampening"])
            else:
                buffer.copy_(grad)
            grad = torch.add(grad, buffer, alpha=momentum, out=work) if numbers["nesterov"] else buffer
        torch.add(old, grad, alpha=-numbers["lr"], out=new)


class FlatAdam(FlatOptimizer):
    """As `torch.optim.adam._single_tensor_adam` without `amsgrad`."""

    def __init__(self, chunk: Chunk, groups: Sequence[int], *, decoupled: bool) -> None:
        """With `decoupled`, the weight decay is that of AdamW."""
        super().__init__(chunk, groups)
        self._decoupled = decoupled

    def _counted(self, updates: int, numbers: Numbers) -> int:
        return updates + 1

    def _update(
        self, numbers: Numbers, old: torch.Tensor, new: torch.Tensor, grad: torch.Tensor, run: _Run, work: torch.Tensor
    ) -> None:
        rate, decay, (beta1, beta2) = numbers["lr"], numbers["weight_decay"], numbers["betas"]
        if numbers["maximize"]:
            grad = torch.neg(grad, out=work)
        if decay != 0:
            if self._decoupled or numbers.get("decoupled_weight_decay"):
                old = torch.mul(old, 1 - rate * decay, out=new)
            else:
                grad = torch.add(grad, old, alpha=decay, out=work)
        first, second = self._next("exp_avg", run), self._next("exp_avg_sq", run)
        torch.lerp(self._state("exp_avg", run), grad, 1 - beta1, out=first)
        torch.mul(self._state("exp_avg_sq", run), beta2, out=second).addcmul_(grad, grad, value=1 - beta2)
        step = float(run.updates + 1)
        torch.sqrt(second, out=work).div_((1 - beta2**step) ** 0.5).add_(numbers["eps"])
        torch.addcdiv(old, first, work, value=-(rate / (1 - beta1**step)), out=new)

    def state(self, piece: int) -> dict[str, torch.Tensor]:
        """As `FlatOptimizer.state`, with the number of updates."""
        state = super().state(piece)
        return {"step": torch.tensor(float(self._updates[piece]), dtype=torch.float32), **state} if state else state


def flat_optimizer(name: str, chunk: Chunk, groups: Sequence[int]) -> FlatOptimizer:
    """The flat optimizer for the class `name` of `torch.optim`, for which `fits` is True."""
    return FlatSgd(chunk, groups) if name == "SGD" else FlatAdam(chunk, groups, decoupled=name == "AdamW")


@cache
def elements_agree(dtype: torch.dtype) -> bool:
    """Whether torch rounds an element the same way wherever it lies in a tensor, so that pieces may be joined.

    Torch computes the last elements of a tensor without vector instructions. For some dtypes (bfloat16) and processors
    the results differ in the last bit, so this function tries it.
    """
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(256, generator=generator).to(dtype) for _ in range(3))
    c = c.abs() + 0.1
    for end in range(1, 130, 3):
        for one, many in zip(_trial(a[:end], b[:end], c[:end]), _trial(a, b, c), strict=True):
            if not torch.equal(one, many[:end]):
                return False
    return True


def _trial(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.add(a, b, alpha=0.3),
        torch.mul(a, 0.9),
        torch.div(a, 0.3),
        torch.lerp(a, b, 0.1),
        torch.addcmul(a, b, b, value=0.001),
        torch.sqrt(c),
        torch.addcdiv(a, b, c, value=-0.01),
    ]
