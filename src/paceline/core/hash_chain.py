"""The hash chain of a block: one hash over all commits applied to it. The audit recomputes it from the log."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack

from paceline.types import Fence

START = bytes(16)
"""The chain of a block before its first commit."""


def extend(chain: bytes, version: int, step: int, fences: tuple[Fence, ...]) -> bytes:
    """The chain after the commit of `version`, which is made of `step` from the attempts named by `fences`."""
    numbers = [n for fence in fences for n in fence]
    return blake2b(chain + pack(f"<{2 + len(numbers)}q", version, step, *numbers), digest_size=16).digest()
