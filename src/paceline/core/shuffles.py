"""The orders of an epoch: a full shuffle, a shuffle by blocks, and draws by weight. Pure functions of the position.

A full shuffle is a keyed permutation of ``range(n)`` with random access: a balanced Feistel network of six rounds over
the next even number of bits, applied again until the result is below n. A shuffle by blocks permutes blocks of
neighbouring samples, and then the samples inside each window of consecutive blocks. Nothing of size n is stored.
docs/protocol.md spells the functions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
_Bits = npt.NDArray[np.uint64]
_ROUNDS = 6
_U64 = np.uint64
_GOLDEN = _U64(0x9E3779B97F4A7C15)


def _keys(seed: int, epoch: int, purpose: str = "order") -> list[np.uint64]:
    raw = blake2b(f"paceline {purpose} {seed} {epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return [np.uint64(int.from_bytes(raw[8 * r : 8 * r + 8], "little")) for r in range(_ROUNDS)]


def _mix(x: _Bits) -> _Bits:
    """Mix the bits of each number, as the last stage of the generator splitmix64 does."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _half(n: int) -> int:
    """How many bits each half of the network has for ``range(n)``."""
    return ((n - 1).bit_length() + 1) // 2


def _forward(x: _Bits, half: int, keys: Sequence[np.uint64 | _Bits]) -> _Bits:
    """One pass of the network. A key is one number, or one for each element of `x`."""
    shift, mask = _U64(half), _U64((1 << half) - 1)
    left, right = x >> shift, x & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _backward(x: _Bits, half: int, keys: Sequence[np.uint64]) -> _Bits:
    shift, mask = _U64(half), _U64((1 << half) - 1)
    left, right = x >> shift, x & mask
    for key in reversed(keys):
        left, right = right ^ (_mix(left ^ key) & mask), left
    return (left << shift) | right


def permute(positions: Indices, n: int, seed: int, epoch: int, purpose: str = "order") -> Indices:
    """The samples at `positions` (each in ``range(n)``) of the shuffled epoch."""
    if n <= 1:
        return np.zeros_like(positions)
    half, keys = _half(n), _keys(seed, epoch, purpose)
    result = positions.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        result[todo] = x = _forward(result[todo], half, keys)
        todo = todo[x >= _U64(n)]
    return result.astype(np.int64)


def position_of(sample: int, n: int, seed: int, epoch: int, purpose: str = "order") -> int:
    """The position that `permute` maps to `sample`."""
    if n <= 1:
        return 0
    half, keys = _half(n), _keys(seed, epoch, purpose)
    x = _backward(np.array([sample], dtype=np.uint64), half, keys)
    while int(x[0]) >= n:
        x = _backward(x, half, keys)
    return int(x[0])


def permute_each(offsets: Indices, size: int, groups: Indices, seed: int, epoch: int, purpose: str) -> Indices:
    """Permute inside of groups that have `size` members each: the member at each of `offsets` of the group beside it.

    Every group has an order of its own.
    """
    if size <= 1:
        return np.zeros_like(offsets)
    half, keys = _half(size), _keys(seed, epoch, purpose)
    salts = groups.astype(np.uint64) * _GOLDEN
    result = offsets.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        mine = [_mix(salts[todo] ^ key) for key in keys]
        result[todo] = x = _forward(result[todo], half, mine)
        todo = todo[x >= _U64(size)]
    return result.astype(np.int64)


def permute_blocks(positions: Indices, n: int, block: int, window: int, seed: int, epoch: int) -> Indices:
    """The samples at `positions` of an epoch that is shuffled by blocks.

    Block b has the samples from ``b * block`` on; the last one may be short. The blocks are permuted, and then the
    samples in each run of `window` consecutive blocks: neighbouring positions read few blocks.
    """
    span = block * window
    runs, inside = np.divmod(positions, span)
    last = n // span  # the run that is short, if there is one
    mixed = np.empty_like(positions)
    for chosen, size in ((runs < last, span), (runs >= last, n % span)):
        mixed[chosen] = permute_each(inside[chosen], size, runs[chosen], seed, epoch, "window")
    mixed += runs * span
    blocks = -(-n // block)
    missing = blocks * block - n  # of the last block, which lies anywhere in the order of the blocks
    short = position_of(blocks - 1, blocks, seed, epoch, "blocks")
    at = np.where(mixed < short * block + block - missing, mixed, mixed + missing)
    where, offset = np.divmod(at, block)
    return permute(where, blocks, seed, epoch, "blocks") * block + offset


def draw(positions: Indices, upto: Weights, seed: int, epoch: int) -> Indices:
    """The samples at `positions` of an epoch that draws by weight, with replacement.

    `upto` are the cumulative weights: sample i is drawn with a probability of its own part of ``upto[-1]``.
    """
    first, second, *_ = _keys(seed, epoch, "draw")
    bits = _mix(_mix(positions.astype(np.uint64) * _GOLDEN ^ first) ^ second)
    at = (bits >> _U64(11)).astype(np.float64) * 2.0**-53 * upto[-1]
    last = int(np.searchsorted(upto, upto[-1], side="left"))  # of the samples with a weight
    found: Indices = np.minimum(np.searchsorted(upto, at, side="right"), last).astype(np.int64)
    return found
