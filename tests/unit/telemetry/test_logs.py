"""The log of a process, as text and as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from paceline.telemetry import logs

logger = logging.getLogger("paceline.telemetry.test")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger("paceline")
    before = root.handlers[:], root.propagate, root.level
    yield
    root.handlers[:], root.propagate, root.level = before


def test_a_line_of_text_has_its_level_and_its_logger() -> None:
    out = io.StringIO()
    logs.set_up("info", "text", process="server-0", stream=out)
    logger.debug("not shown")
    logger.info("block %d", 7)
    (line,) = out.getvalue().splitlines()
    assert line.endswith(" INFO paceline.telemetry.test: block 7")


def test_a_line_of_json_names_the_process_and_its_start() -> None:
    out = io.StringIO()
    logs.set_up("debug", "json", process="worker-1", start=3, stream=out)
    logger.debug("two\nlines")
    try:
        raise ValueError("oops")
    except ValueError:
        logger.exception("failed")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["process"], first["start"]) == ("debug", "worker-1", 3)
    assert (first["logger"], first["message"]) == ("paceline.telemetry.test", "two\nlines")
    assert first["at"] > 1.7e9
    assert "trace" not in first
    assert "ValueError: oops" in second["trace"]


def test_a_second_set_up_replaces_the_first_and_leaves_other_logs_alone() -> None:
    first, second = io.StringIO(), io.StringIO()
    handlers = logging.getLogger().handlers[:]
    logs.set_up("debug", "text", process="worker-0", stream=first)
    logs.set_up("error", "text", process="worker-0", stream=second)
    logger.warning("not shown")
    logger.error("shown")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert logging.getLogger().handlers == handlers
