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

    It holds the phase, the seed, the fingerprint of the data with the digests of its files, the order of the samples,
    how they become batches, and the packages, kind of CPU and number of threads that prepare them (rule 24). Of the
    samples in the fingerprint those count that every process has read: of a slow data set it may have read no others.
    Bad records are in no key: they change no position, and a sampler hands over no slot that has one.
    """
    collate = spec.collate
    name = f"{getattr(collate, '__module__', '')}.{getattr(collate, '__qualname__', type(collate).__qualname__)}"
    order = spec.order
    words = [
        phase,
        seed,
        fingerprint.length,
        fingerprint.source,
        fingerprint.platform,
        compared(fingerprint),
        fingerprint.files,
        spec.source.fingerprint,
        spec.batch_size,
        order.shuffle,
        order.block_size,
        order.block_window,
        order.weights,
        spec.drop_last,
        name,
        torch.get_num_threads(),
    ]
    return blake2b(repr(words).encode(), digest_size=_NBYTES).hexdigest()
