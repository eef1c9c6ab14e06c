"""The fingerprint of a data set: digests of a few samples, by which the coordinator compares the data of workers."""

from __future__ import annotations

import platform
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from paceline.core.sampling import slot_seed
from paceline.data.loader import BatchMaker
from paceline.data.sample_digest import sample_digest
from paceline.data.seeding import preserved
from paceline.data.source import DatasetSource, Source
from paceline.types import DataFingerprint

_MOST, _FEWEST = 8, 2  # samples of one data set that are read
_FILES = 500  # that a fingerprint names
_BUDGET_S = 0.5  # once all data sets together have taken this long, only the fewest samples are read
_PACKAGES = ("PIL", "torchvision", "torchaudio", "cv2")  # packages that decode samples


class Fingerprints:
    """Makes the fingerprints of the data sets of one job. A data set that a script uses again is not read again."""

    def __init__(self, seed: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seed = seed
        self._clock = clock
        self._seconds = 0.0
        self._known: list[tuple[weakref.ref[Any], DataFingerprint]] = []

    def of(self, maker: BatchMaker) -> DataFingerprint | None:
        """The fingerprint of the data of `maker`; None if this object was asked for the same data set before."""
        fingerprint, is_new = self.find(maker)
        return fingerprint if is_new else None

    def find(self, maker: BatchMaker) -> tuple[DataFingerprint, bool]:
        """The fingerprint of the data of `maker`, and whether this object was not asked for this data set before.

        Reads a few samples twice in one process, which is a loader process if there are any. The random generators do
        not change.
        """
        source = maker.spec.source
        data = source.data if isinstance(source, DatasetSource) else source
        self._known = [known for known in self._known if known[0]() is not None]
        for known, fingerprint in self._known:
            if known() is data:
                return fingerprint, False
        began = self._clock()
        files = file_digests(source)
        samples: tuple[tuple[int, str], ...] = ()
        unstable = -1
        if not files:  # a source of files is compared by these
            with preserved():
                samples, unstable = self._samples(maker, began)
        self._seconds += self._clock() - began
        name = "" if isinstance(source, DatasetSource) else source.fingerprint
        shaky = f"sample {unstable} of {type(data).__name__}" * (unstable >= 0)
        fingerprint = DataFingerprint(source.length, name, _platform(), samples, shaky, grouped(files))
        with suppress(TypeError):  # a list, for example, has no weak references: it is read each time
            self._known.append((weakref.ref(data), fingerprint))
        return fingerprint, True

    def _samples(self, maker: BatchMaker, began: float) -> tuple[tuple[tuple[int, str], ...], int]:
        """The digests of a few samples; and the first position whose sample differs at another reading, else -1."""
        samples, unstable = [], -1
        for k, position in enumerate(_positions(maker.spec.length)):
            if k >= _FEWEST and self._seconds + self._clock() - began > _BUDGET_S:
                break
            seed = slot_seed(self._seed, k, position, "fingerprint")
            digests = _read(maker, seed, position)
            if len(digests) == 1:
                samples.append((position, digests.pop()))
            elif digests and unstable < 0:
                # The sample does not follow from the seed: it cannot be compared.
                unstable = position
        return tuple(samples), unstable


def file_digests(source: Source) -> tuple[tuple[str, str], ...]:
    """The files of a source with their digests; () if it has none."""
    found: tuple[tuple[str, str], ...] = getattr(source, "file_digests", ())
    return found


def grouped(files: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """At most `_FILES` files with their digests: of more, neighbours have one digest together."""
    if len(files) <= _FILES:
        return files
    size = -(-len(files) // _FILES)
    groups = [files[k : k + size] for k in range(0, len(files), size)]
    return tuple((f"{g[0][0]} to {g[-1][0]}", blake2b(repr(g).encode(), digest_size=8).hexdigest()) for g in groups)


def compared(fingerprint: DataFingerprint) -> tuple[tuple[int, str], ...]:
    """The digests of the samples that every process reads, unless they differ from one reading to the next."""
    always = _positions(fingerprint.length)[:_FEWEST]
    return tuple((position, digest) for position, digest in fingerprint.samples if position in always)


def _read(maker: BatchMaker, seed: int, position: int) -> set[str]:
    """The digests of several readings of one sample; none if it cannot be read: the loop raises the error if need be.

    One reading more than there are loader processes: one of them reads twice. Copies of a generator in two processes
    would draw the same numbers.
    """
    readings = 1 + max(1, maker.spec.loader_workers)
    try:
        return {sample_digest(sample) for sample in maker.read([(seed, position)] * readings)}
    except Exception:
        maker.close()  # what is left of the request must not be taken for the next one
        return set()


def _positions(length: int) -> list[int]:
    """Positions all over the data; the middle first, where a split of sorted data differs most."""
    count = min(_MOST, length)
    spread = [k * (length - 1) // max(1, count - 1) for k in range(count)]
    return sorted(spread, key=lambda position: abs(2 * position - length))


def _platform() -> str:
    """What the bits of a sample may depend on besides the data: the kind of CPU, and the packages that make samples."""
    words = [platform.machine(), torch.backends.cpu.get_cpu_capability(), torch.__version__, np.__version__]
    words += [f"{name} {getattr(sys.modules[name], '__version__', '')}" for name in _PACKAGES if name in sys.modules]
    return blake2b(" ".join(words).encode(), digest_size=8).hexdigest()
