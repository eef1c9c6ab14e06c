"""Damaged bytes."""

from __future__ import annotations

import random


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return a damaged copy of the bytes: with bits flipped, bytes set, or parts cut, repeated or spliced."""
    broken = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(6)
        at = rng.randrange(len(broken) + 1)
        if kind == 0 and at < len(broken):
            broken[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(broken):
            broken[at] = rng.choice((0x00, 0x7F, 0x80, 0xC1, 0xCF, 0xD3, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF))
        elif kind == 2:
            del broken[at:]
        elif kind == 3:
            broken[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 4:
            broken[at:at] = broken[at : at + rng.randint(1, 16)]
        else:
            broken += rng.randbytes(rng.randint(1, 4))
    return bytes(broken)
