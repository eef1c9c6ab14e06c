"""The key of the data of a phase: processes with equal keys prepare equal batches."""

from __future__ import annotations

from hashlib import blake2b

import torch

from paceline.data.data_spec import DataSpec
from paceline.data.fingerprint import compared
from paceline.types import DataFingerprint

_NBYTES = 16


def data_key(phase: int, seed: int, spec: DataSpec, fingerprint: DataFingerprint) -> str:
    """The key of phase number `phase` over the data of `spec`.

    It holds the phase, the seed, the fingerprint of the data, how samples become batches, and the packages, kind of CPU
    and number of threads that prepare them (rule 24). Of the samples in the fingerprint those count that every
    process has read: of a slow data set it may have read no others.
    """
    collate = spec.collate
    name = f"{getattr(collate, '__module__', '')}.{getattr(collate, '__qualname__', type(collate).__qualname__)}"
    words = [
        phase,
        seed,
        fingerprint.length,
        fingerprint.source,
        fingerprint.platform,
        compared(fingerprint),
        spec.source.fingerprint,
        spec.batch_size,
        spec.shuffle,
        spec.drop_last,
        name,
        torch.get_num_threads(),
    ]
    return blake2b(repr(words).encode(), digest_size=_NBYTES).hexdigest()
