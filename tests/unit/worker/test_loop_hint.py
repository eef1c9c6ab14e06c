"""The line that a script should have is made of its own line."""

from __future__ import annotations

from paceline.worker.loop_hint import line_to_write


def tqdm(items: list[int], desc: str = "") -> list[int]:
    """Stand in for a progress bar."""
    return items


def _deep() -> str:
    return line_to_write()


def test_the_line_of_the_script_is_rewritten() -> None:
    loader = [1]
    for _x in loader:
        assert line_to_write() == "for _x in job.batches(loader, slots=4):"
        assert _deep() == "for _x in job.batches(loader, slots=4):", "the loop may be in the caller"
    for _, _x in enumerate(tqdm(loader, desc="training")):
        assert line_to_write() == "for _, _x in enumerate(tqdm(job.batches(loader, slots=4), desc='training')):"
    for _epoch in range(1):
        for _x in loader[:1]:
            assert line_to_write() == "for _x in job.batches(loader[:1], slots=4):"


def test_a_call_without_such_a_loop_gets_an_example() -> None:
    for _epoch in range(1):
        assert line_to_write() == "for x, y in job.batches(loader, slots=4):"
    assert eval("line_to_write()", {"line_to_write": line_to_write}) == "for x, y in job.batches(loader, slots=4):"
