"""The hash chain of a block: what a server did, in one number that an audit can compute again from the log."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack

from paceline.types import Fence

START = bytes(16)
"""The chain of a block that holds nothing yet."""


def extend(chain: bytes, version: int, step: int, fences: tuple[Fence, ...]) -> bytes:
    """The chain after the attempts `fences` of `step` became `version`."""
    numbers = [n for fence in fences for n in fence]
    return blake2b(chain + pack(f"<{2 + len(numbers)}q", version, step, *numbers), digest_size=16).digest()
