"""The job of a sampler has every member of `Job`, with the same parameters: it runs the same script."""

from __future__ import annotations

import inspect

import pytest

import paceline
from paceline.sampler.job import SamplerJob

MEMBERS = sorted(name for name in dir(paceline.Job) if not name.startswith("_"))


def test_no_member_is_missing_and_none_is_added() -> None:
    assert sorted(name for name in dir(SamplerJob) if not name.startswith("_")) == MEMBERS


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_has_the_parameters_of_that_of_a_worker(name: str) -> None:
    mine, theirs = (inspect.getattr_static(kind, name) for kind in (SamplerJob, paceline.Job))
    assert isinstance(mine, property) == isinstance(theirs, property)
    if not isinstance(mine, property):
        arguments = [
            [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()] for f in (mine, theirs)
        ]
        assert arguments[0] == arguments[1]
