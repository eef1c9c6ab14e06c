from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from paceline.data.files import records as module
from paceline.data.files.indexes import quiet
from paceline.data.files.places import Files, list_files
from paceline.data.files.records import EVERY, index_records
from paceline.errors import DataError


def files(path: Path, content: bytes) -> Files:
    path.write_bytes(content)
    return list_files(path, ())


def made(content: bytes, rows: int) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    for k in range(rows):
        writer.writerow([k, 'a "b"\n\n,c' * (k % 3), "x" * (k % 50)])
    return content + out.getvalue().encode()


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_quoted_line_breaks_end_no_record_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    content = made(b"", 200)
    found = index_records(files(tmp_path / "a.csv", content), quiet, quotes=True, header=False)
    assert found["counts"].tolist() == [200]
    numbers = [int(content[int(at) :].split(b",")[0]) for at in found["starts"]]
    assert numbers == list(range(0, 200, EVERY))


@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_empty_lines_are_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    content = b"\n\r\n\n" + b"".join(b"%d\r\n\r\n\n" % k for k in range(50)) + b"50"
    found = index_records(files(tmp_path / "a.txt", content), quiet, quotes=False, header=False)
    assert found["counts"].tolist() == [51]
    assert [int(content[int(at) :].split()[0]) for at in found["starts"]] == list(range(0, 51, EVERY))


def test_a_header_and_a_mark_of_utf_8_are_no_records(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf"a\nb",c\n1,2\n3,4'
    found = index_records(files(tmp_path / "a.csv", content), quiet, quotes=True, header=True)
    assert (found["counts"].tolist(), found["begin"].tolist()) == ([2], [content.index(b"1,2")])


def test_the_index_goes_on_over_files(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"{k}.txt").write_bytes(b"x\n" * (40 + k))
    found = index_records(list_files(tmp_path, (".txt",)), quiet, quotes=False, header=False)
    assert found["counts"].tolist() == [40, 41, 42]
    assert found["first"].tolist() == [0, 3, 6, 9]
    assert np.array_equal(found["starts"], np.tile([0, 32, 64], 3))


def test_a_quote_without_its_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv: the quote in the record at byte 4 has no end"):
        index_records(files(tmp_path / "a.csv", b'1,2\n3,"4\n5,6\n'), quiet, quotes=True, header=False)
