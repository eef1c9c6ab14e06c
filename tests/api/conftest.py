"""A fixture that closes the job of each test before the next test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_open_job() -> Iterator[None]:
    yield
    from paceline.runtime import current_job

    current_job.close(failed=True)
