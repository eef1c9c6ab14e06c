"""Weighted sums of gradients, block by block, in slot order: acc = w0*g0, then acc += wi*gi.

The bits never depend on the time of an addition. The gradient of the last slot is added late, by the update, which has
all operands in the cache. Gradients that are not sealed yet may be added early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from paceline.blocks.presence import Presence
from paceline.messages import SumMeta
from paceline.types import BlockSpec, Fence

_SPARE = 2  # buffers of a block that are kept to be used again


class SumMemory:
    """Memory for the sums of one block. Memory that is given back is used again."""

    __slots__ = ("_dtype", "_economise", "_numel", "_spare")

    def __init__(self, numel: int, dtype: torch.dtype) -> None:
        self._numel = numel
        self._dtype = dtype
        self._spare: list[torch.Tensor] = []
        self._economise = False

    def take(self) -> torch.Tensor:
        """Memory for one sum; its content is undefined."""
        return self._spare.pop() if self._spare else torch.empty(self._numel, dtype=self._dtype)

    def give_back(self, memory: torch.Tensor | None) -> None:
        """Give back `memory`, which `take` returned."""
        if memory is not None and not self._economise and len(self._spare) < _SPARE:
            self._spare.append(memory)

    def economise(self, yes: bool) -> None:
        """With `yes`, free memory that is given back, instead of using it again."""
        self._economise = yes
        if yes:
            self._spare.clear()


class Term:
    """The gradient of one block in one slot. `value` is memory of the sender, borrowed until the term is dropped."""

    __slots__ = ("fence", "rev", "sealed", "slot", "value", "weight")

    def __init__(self, slot: int, fence: Fence | None, rev: int, weight: float, value: torch.Tensor) -> None:
        self.slot = slot
        self.fence = fence
        self.rev = rev
        self.weight = weight
        self.value = value
        self.sealed = False

    def is_attempt(self, slot: int, fence: Fence | None, rev: int, weight: float) -> bool:
        """Whether this term came from this push (slot, fence, rev), with this weight."""
        return (self.slot, self.fence, self.rev, self.weight) == (slot, fence, rev, weight)

    @property
    def scaled(self) -> torch.Tensor:
        """The gradient times its weight."""
        return self.value if self.weight == 1.0 else self.value * self.weight


class BlockSum:
    """The sum of one block: `base` plus `terms`, in slot order.

    `base` is the sum of sealed slots, in memory of this sum. Sealed terms come before unsealed ones. `_head` is `base`
    plus the first `_folded` terms. Once all of these are sealed, `_head` becomes `base` and the terms are dropped; if a
    term is replaced before its seal, `_head` is computed again. `_waiting` has terms, by slot, that cannot be added
    yet, because the term of an earlier slot is missing. `slots` counts the gradients in the sum, unsealed ones
    included; `stamp` changes whenever these gradients do.
    """

    __slots__ = ("_folded", "_head", "_memory", "_waiting", "base", "slots", "stamp", "terms")

    def __init__(self, memory: SumMemory) -> None:
        self._memory = memory
        self.base: torch.Tensor | None = None
        self.terms: list[Term] = []
        self._head: torch.Tensor | None = None
        self._folded = 0
        self._waiting: dict[int, Term] = {}
        self.stamp = self.slots = 0

    def add(self, term: Term, late: int) -> None:
        """Add the sealed gradient of the next slot, and compute the sum of all but the last `late` gradients."""
        terms = self.terms
        if self._waiting or (terms and not terms[-1].sealed):
            self.seal(term)
        else:
            term.sealed = True
            terms.append(term)
            self.slots += 1
            self.stamp += 1
        count = len(terms) - late
        if count > 1 or (count and (self.base is not None or term.weight != 1.0)):
            self.fold(count)

    def seal(self, term: Term) -> None:
        """Add the sealed gradient of the next slot, or seal the equal term that was added early."""
        term.sealed = True
        self._waiting.pop(term.slot, None)
        at = self._first_unsealed()
        if at < len(self.terms):
            if self.terms[at].is_attempt(term.slot, term.fence, term.rev, term.weight):
                self.terms[at].sealed = True
                self._settle()
                return
            self._retract(term.slot)
        self._append(term)

    def install(self, term: Term, slots: int) -> None:
        """Make `term`, which is the sum of `slots` gradients, the whole of this sum."""
        term.sealed = True
        self._append(term)
        self.slots = slots

    def _append(self, term: Term) -> None:
        self.terms.append(term)
        self.slots += 1
        self.stamp += 1

    def skip(self, slot: int) -> None:
        """Note that `slot`, the next one, was sealed without this block."""
        self._waiting.pop(slot, None)
        if self._first_unsealed() < len(self.terms):
            self._retract(slot)

    def expect(self, term: Term, next_slot: int) -> None:
        """Add a term that is not sealed yet, once the terms of all slots before it are added.

        `next_slot` is the first slot that is not sealed.
        """
        if term.slot < next_slot:
            return
        if any(t.slot == term.slot for t in self.terms[self._first_unsealed() :]):
            self._retract(term.slot)
        self._waiting[term.slot] = term
        while (next_ := self._waiting.pop(next_slot + len(self.terms) - self._first_unsealed(), None)) is not None:
            self._append(next_)
        self.fold(len(self.terms))

    def fold(self, count: int) -> None:
        """Compute the sum of `base` and the first `count` terms now."""
        if count <= self._folded or (self.base is None and count == 1 and self.terms[0].weight == 1.0):
            return  # a first gradient of weight 1 is itself the sum
        acc = self._head if self._folded else self.base
        ours = acc is not None and (self._folded > 0 or all(t.sealed for t in self.terms[:count]))
        for term in self.terms[self._folded : count]:
            if acc is None and term.weight == 1.0:
                acc = term.value
            elif acc is None:
                acc, ours = torch.mul(term.value, term.weight, out=self._memory.take()), True
            elif ours:
                acc.add_(term.scaled)
            else:
                acc, ours = torch.add(acc, term.scaled, out=self._memory.take()), True
        self._head, self._folded = acc, count
        self._settle()

    def into(self, out: torch.Tensor) -> torch.Tensor:
        """The complete sum, computed into `out` unless it exists already; the caller may write only to `out`."""
        acc = self._head if self._folded else self.base
        for term in self.terms[self._folded :]:
            if acc is not None:
                acc = torch.add(acc, term.value if term.weight == 1.0 else term.scaled, out=out)
            elif term.weight == 1.0:
                acc = term.value
            else:
                acc = torch.mul(term.value, term.weight, out=out)
        assert acc is not None
        return acc

    def gather(self, memory: SumMemory) -> torch.Tensor:
        """The complete sum, moved into memory taken from `memory` until `close`. No slot may be added afterwards.

        The bits are those of `into`. The memory of the senders is no longer used.
        """
        if self._first_unsealed() < len(self.terms):
            self._retract(-1)
        self._waiting.clear()
        if self._memory is memory:
            self.fold(len(self.terms))
        if self.wants(memory):
            taken = memory.take()
            made = self.into(taken)
            if made is not taken:
                taken.copy_(made)
            self.close()
            self._memory, self.base = memory, taken
        assert self.base is not None
        return self.base

    def wants(self, memory: SumMemory) -> bool:
        """Whether `gather` will call `memory.take`."""
        return self._memory is not memory or self.base is None

    @property
    def empty(self) -> bool:
        """Whether no gradient is sealed."""
        return self.base is None and not (self.terms and self.terms[0].sealed)

    def close(self) -> None:
        """Give back all memory: the sum is no longer needed."""
        if self.base is not None:
            self._memory.give_back(self.base)
        if self._head is not self.base:
            self._memory.give_back(self._head)
        self.base = self._head = None
        self._folded = 0
        self.terms.clear()

    def _first_unsealed(self) -> int:
        """The position of the first term that is not sealed."""
        count = len(self.terms)
        while count and not self.terms[count - 1].sealed:
            count -= 1
        return count

    def _settle(self) -> None:
        """Make the head the base if all its terms are sealed."""
        if self._folded and all(t.sealed for t in self.terms[: self._folded]):
            if self.base is not self._head:
                self._memory.give_back(self.base)
            self.base, self._head = self._head, None
            del self.terms[: self._folded]
            self._folded = 0

    def _retract(self, slot: int) -> None:
        """Take all unsealed terms out of the sum; forget the term of `slot`, and let the others wait."""
        at = self._first_unsealed()
        self.slots -= len(self.terms) - at
        self.stamp += 1
        for term in self.terms[at:]:
            if term.slot != slot:
                self._waiting[term.slot] = term
        del self.terms[at:]
        if self._folded > at:
            self._memory.give_back(self._head)
            self._head, self._folded = None, 0


class Sum:
    """The sums of all blocks of one step: gradients in `blocks`, initial weights and buffers of the model in `values`.

    `presence` says which of them some slot pushed. `hinted` says that unsealed gradients were offered.
    """

    __slots__ = ("_shared", "blocks", "hinted", "presence", "slots", "values", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.slots = 0
        self.blocks: dict[int, BlockSum] = {}
        self.values: dict[int, torch.Tensor] = {}
        self._shared: dict[int, tuple[SumMemory, torch.Tensor]] = {}
        self.presence = Presence()
        self.hinted = False

    def close(self) -> None:
        """Give back all memory: the sums are no longer needed."""
        for block in self.blocks.values():
            block.close()
        for memory, taken in self._shared.values():
            memory.give_back(taken)

    def begin_slot(self, weight: float) -> None:
        """Count one sealed slot."""
        self.weight += weight
        self.slots += 1

    def hint(self) -> None:
        """Note that unsealed gradients were offered."""
        self.hinted = True

    def block(self, index: int, memory: SumMemory) -> BlockSum:
        """The sum of one block."""
        found = self.blocks.get(index)
        if found is None:
            found = self.blocks[index] = BlockSum(memory)
        return found

    def install(self, index: int, memory: SumMemory, value: torch.Tensor, slots: int = 1) -> None:
        """Set the sum of one block to `value`, which another process has computed from `slots` gradients."""
        made = self.blocks[index] = BlockSum(memory)
        made.install(Term(0, None, -1, 1.0, value), slots)

    def set_value(self, index: int, value: torch.Tensor) -> None:
        """Set the value of a block of initial weights or buffers."""
        self.values[index] = value

    def accumulate(self, index: int, weight: float, value: torch.Tensor) -> None:
        """Add `value` times `weight` to the sum of a block of float buffers."""
        acc = self.values.get(index)
        if acc is None:
            self.values[index] = value.clone() if weight == 1.0 else value * weight
        else:
            acc.add_(value if weight == 1.0 else value * weight)

    def share(self, index: int, memory: SumMemory) -> torch.Tensor:
        """A copy of a value in memory that is taken from `memory` until `close`."""
        if index not in self._shared:
            self._shared[index] = memory, memory.take().copy_(self.values[index])
        return self._shared[index][1]

    # ------------------------------------------------------------ on other servers

    def meta(self, blocks: Sequence[BlockSpec]) -> SumMeta:
        """What a backup must know about the sum of `blocks` besides its values."""
        return self.presence.meta(blocks, self.weight, self.slots)

    def learn(self, meta: SumMeta) -> None:
        """Set weight and slots, and add the presence, from `meta`, which the primary made."""
        self.weight, self.slots = meta.weight, meta.slots
        self.presence.learn(meta)


def mean(total: torch.Tensor, weight: float, out: torch.Tensor) -> torch.Tensor:
    """`total` / `weight`: `total` itself for a weight of 1, otherwise computed into `out`.

    For a power of two, a multiplication gives the same bits as the division, and is faster.
    """
    if weight == 1.0:
        return total
    inverse = _INVERSES.get(weight)
    if inverse is not None:
        return torch.mul(total, inverse, out=out)
    return torch.div(total, weight, out=out)


_INVERSES: Mapping[float, float] = {float(1 << n): 1.0 / (1 << n) for n in range(1, 11)}
