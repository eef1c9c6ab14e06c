"""Equal samples have equal digests; other samples have others; nothing of the process goes into a digest."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.data.sample_digest import sample_digest

Point = namedtuple("Point", "x y")


@dataclass
class Record:
    image: torch.Tensor
    label: int


class Opaque:
    """An object whose content is not known."""

    def __init__(self, value: int) -> None:
        self.value = value


class Image:
    """Looks like an image of PIL."""

    mode, size = "L", (2, 2)

    def __init__(self, content: bytes) -> None:
        self._content = content

    def tobytes(self) -> bytes:
        return self._content


Image.__module__ = "PIL.Image"

LARGE = np.arange(400_000, dtype=np.float64)
PAIRS: list[tuple[Any, Any]] = [
    (1, 2),
    (1, 1.0),
    (True, 1),
    (None, ""),
    ("a", b"a"),
    (0.1, 0.1 + 1e-17 * 9),
    ([1, 2], [2, 1]),
    ([1, 2], (1, 2)),
    ([[1], 2], [1, [2]]),
    (Point(1, 2), Point(2, 1)),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({1, 2}, {1, 3}),
    (torch.zeros(3), torch.zeros(4)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    (torch.arange(3), torch.arange(1, 4)),
    (torch.tensor(1.0), torch.tensor(2.0)),
    (torch.ones(2).bfloat16(), torch.zeros(2).bfloat16()),
    (torch.tensor([True]), torch.tensor([False])),
    (torch.tensor([1j]), torch.tensor([2j])),
    (np.zeros(3), np.ones(3)),
    (np.float32(1), np.float32(2)),
    (np.array(["a", "b"]), np.array(["a", "c"])),
    (np.array([1, "a"], dtype=object), np.array([1, "b"], dtype=object)),
    (LARGE, np.concatenate([LARGE[:-1], [0.0]])),
    (Record(torch.zeros(2), 1), Record(torch.zeros(2), 2)),
    (Image(b"1234"), Image(b"1235")),
    ((torch.zeros(2), {"label": 1}), (torch.zeros(2), {"label": 2})),
]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_other_samples_have_other_digests(number: int) -> None:
    one, other = PAIRS[number]
    assert sample_digest(one) == sample_digest(one)
    assert (sample_digest(one) == sample_digest(other)) == (repr(one) == repr(other) and one == other)


def test_only_the_content_counts() -> None:
    turned = torch.arange(6.0).view(2, 3).t()
    assert sample_digest(turned) == sample_digest(turned.contiguous())
    assert sample_digest(torch.tensor([1j]).conj()) == sample_digest(torch.tensor([complex(0, -1)]))
    assert sample_digest(np.arange(6)[::2]) == sample_digest(np.array([0, 2, 4]))
    assert sample_digest({"a": 1, "b": 2}) == sample_digest({"b": 2, "a": 1})
    assert sample_digest({"ab", "cd", "ef"}) == sample_digest({"ef", "cd", "ab"})
    assert sample_digest(Opaque(1)) == sample_digest(Opaque(2)), "an object that is not known has no content"
    assert sample_digest([Opaque(1), 3]) != sample_digest([Opaque(1), 4])
    assert sample_digest(Path("/a/b")) == sample_digest(Path("/c/d")), "files may lie elsewhere on another host"


def test_bytes_without_a_meaning_do_not_count() -> None:
    padded = np.dtype([("a", np.int8), ("b", np.int64)], align=True)
    one, other = np.zeros(2, padded), np.zeros(2, padded)
    other.view(np.uint8)[3] = 7
    assert sample_digest(one) == sample_digest(other)
    other["b"][1] = 1
    assert sample_digest(one) != sample_digest(other)
    assert sample_digest(np.longdouble(1)) != sample_digest(np.longdouble(2))


def test_a_sample_may_be_nested_without_an_end() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    assert sample_digest(endless) == sample_digest(endless)


@pytest.mark.parametrize(
    "sample",
    [torch.zeros(2, 2).to_sparse(), torch.zeros(3, device="meta"), OrderedDict(a=1), torch.nn.Parameter(torch.ones(2))],
)
def test_tensors_and_collections_of_all_kinds_have_a_digest(sample: Any) -> None:
    assert len(sample_digest(sample)) == 16
