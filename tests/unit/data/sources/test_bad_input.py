"""What is wrong with files is named with the file, the record and the remedy; only content counts as bad."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.sample_files import write_csv, write_parquet, write_tar

import paceline
from paceline.data.sources import decoding, tar
from paceline.errors import BadRecordError, DataChangedError, DataError, DataUnreachableError, UsageError


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))


def opened(where: Path, **arguments: Any) -> Any:
    return paceline.data.open(where, **arguments)


def table(path: Path, **columns: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


# ---------------------------------------------------------------- Parquet


def test_a_damaged_row_group_is_bad_as_a_whole_and_the_others_are_not(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    path = tmp_path / "part-1.parquet"
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    source = opened(tmp_path)
    with pytest.raises(BadRecordError, match=r"row group 0 of \S+part-1\.parquet is damaged .*on_bad_record") as found:
        source.read([45])
    assert (found.value.first, found.value.count) == (40, 16)
    with pytest.raises(BadRecordError):  # it is not read again
        source.read([41])
    assert source.read([0, 56, 95])[1]["name"] == "row 56"


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    path = tmp_path / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"part-1\.parquet is no Parquet file, or it is cut off.*again"):
        opened(tmp_path)


def test_files_with_other_columns_are_named_with_the_column(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", x=[1.0, 2.0], y=[1, 2])
    table(tmp_path / "b.parquet", x=[1.0, 2.0], y=["1", "2"])
    with pytest.raises(
        DataError, match=r"b\.parquet has other columns than \S+a\.parquet: y is string instead of int64"
    ):
        opened(tmp_path)


def test_a_column_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'z': columns= can name x, y"):
        opened(table(tmp_path / "a.parquet", x=[1.0], y=[1]), columns=["x", "z"])


def test_a_null_is_a_bad_record_but_nan_among_floating_point_numbers(tmp_path: Path) -> None:
    source = opened(table(tmp_path / "a.parquet", x=[1.0, None, 3.0], y=[1, 2, None]))
    assert np.isnan(source.read([1])[0]["x"])
    with pytest.raises(BadRecordError, match=r"row 2 of row group 0 of \S+a\.parquet: column 'y' is null"):
        source.read_batch(np.array([0, 2]))


def test_folders_are_columns(tmp_path: Path) -> None:
    for year in (2023, 2024):
        table(tmp_path / f"year={year}" / "kind=a" / "0.parquet", x=[1.0, 2.0])
    source = opened(tmp_path)
    assert [(s["year"], s["kind"]) for s in source.read([0, 3])] == [(2023, "a"), (2024, "a")]
    assert dict(source.columns) == {"x": "double", "year": "folder", "kind": "folder"}
    table(tmp_path / "month=1" / "0.parquet", x=[1.0])
    with pytest.raises(DataError, match="in folders with other columns"):
        opened(tmp_path)


def test_every_type_of_a_column_becomes_a_tensor_or_a_list(tmp_path: Path) -> None:
    import datetime
    import decimal

    import pyarrow as pa

    day = datetime.date(2024, 1, 2)
    source = opened(
        table(
            tmp_path / "a.parquet",
            i=pa.array([1, 2], pa.int16()),
            b=[True, False],
            f=pa.array([1, 2], pa.float32()),
            d=[decimal.Decimal("1.5"), decimal.Decimal("2.5")],
            t=[datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 3)],
            day=[day, day],
            s=["a", "b"],
            raw=[b"1", b"2"],
            word=pa.array(["u", "v"]).dictionary_encode(),
            many=[[1.0], [2.0]],
        )
    )
    batch = source.read_batch(np.array([1, 0]))
    assert {n: str(v.dtype)[6:] for n, v in batch.items() if hasattr(v, "dtype")} == {
        "i": "int16",
        "b": "bool",
        "f": "float32",
        "d": "float64",
        "t": "int64",
        "day": "int32",
        "many": "float64",
    }
    assert (batch["s"], batch["raw"], batch["word"]) == (["b", "a"], [b"2", b"1"], ["v", "u"])
    assert batch["many"].tolist() == [[2.0], [1.0]]


# ---------------------------------------------------------------- CSV and JSON lines


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"1,2", "it has 2 fields, and the header has 6"),
        (b"a,2,3,4,5,x", "column 'x0' is 'a', which is no float64"),
        (b"1,2,3,4,5,\xff", "cannot be read as CSV"),
    ],
)
def test_a_bad_line_of_csv_is_named_by_its_number(tmp_path: Path, line: bytes, what: str) -> None:
    write_csv(tmp_path)
    path = tmp_path / "part-2.csv"
    path.write_bytes(path.read_bytes() + line + b"\n")
    source = opened(tmp_path)
    assert source.length == 97
    with pytest.raises(BadRecordError, match=rf"record 17 of \S+part-2\.csv: .*{what}"):
        source.read([96])
    source.read(range(96))


def test_headers_that_differ_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with pytest.raises(DataError, match=r"b\.csv has other columns than \S+a\.csv \(y, z\)"):
        opened(tmp_path)
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(DataError, match=r"b\.csv is empty: it needs a first line"):
        opened(tmp_path)


def test_types_of_columns_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n")
    source = opened(tmp_path / "a.csv", dtypes={"x": "float32", "y": "str"})
    assert source.read([1]) == [{"x": 3.0, "y": "4"}]
    assert str(source.read_batch(np.array([0]))["x"].dtype) == "torch.float32"
    with pytest.raises(UsageError, match="dtypes= says 'int' for x: it can be"):
        opened(tmp_path / "a.csv", dtypes={"x": "int"})


@pytest.mark.parametrize(("line", "what"), [("{", "no JSON"), ("[1]", "no JSON object"), ('{"x": 1}', "no 'y'")])
def test_a_bad_line_of_json_is_named(tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": [1, 2]}\n' + line)
    with pytest.raises(BadRecordError, match=rf"record 2 of \S+a\.jsonl: .*{what}"):
        opened(tmp_path / "a.jsonl").read([1])


# ---------------------------------------------------------------- tar shards, images, arrays


def test_a_tar_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    write_tar(tmp_path)
    path = tmp_path / "part-1.tar"
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DataError, match=r"part-1\.tar .*cut off"):
        opened(tmp_path)


def test_a_damaged_member_and_a_missing_one_are_bad_records(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in (("0.json", b"1"), ("0.cls", b"1"), ("1.json", b"{"), ("1.cls", b"1"), ("2.json", b"1")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    source = opened(tmp_path / "a.tar", columns=["json", "cls"])
    assert source.read([0]) == [{"json": 1, "cls": 1}]
    with pytest.raises(BadRecordError, match=r"the sample at byte \d+ of \S+a\.tar: its member \.json is damaged"):
        source.read([1])
    with pytest.raises(BadRecordError, match=r"it has no member \.cls"):
        source.read([2])
    with pytest.raises(UsageError, match=r"no member with the suffix 'jpg': columns= can name json, cls"):
        opened(tmp_path / "a.tar", columns=["jpg"])


def test_members_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path)
    monkeypatch.setattr(tar, "LARGEST_MEMBER", 100)
    with pytest.raises(DataError, match="has more than"):
        opened(tmp_path)
    with tarfile.open(tmp_path / "part-0.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("x" * 2000))
    with pytest.raises(DataError, match="a member has a name of more than 1024 characters"):
        opened(tmp_path / "part-0.tar")


def bomb(width: int, height: int) -> bytes:
    """A PNG that declares many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    end = struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + end


def test_pixels_are_bounded_before_they_are_decoded() -> None:
    with pytest.raises(decoding.Undecodable, match=r"too large|no image"):
        decoding.image(bomb(60_000, 60_000))
    with pytest.raises(decoding.Undecodable, match="an image of 9000 × 9000 pixels is too large"):
        decoding.image(bomb(9000, 9000))


def test_arrays_are_bounded_and_need_no_pickle() -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    with pytest.raises(decoding.Undecodable, match="too large"):
        decoding.array(buffer.getvalue())
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(decoding.Undecodable, match="pickle"):
        decoding.array(buffer.getvalue())


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.jpg").write_bytes(b"no image")
    with pytest.raises(BadRecordError, match=r"cats/a\.jpg: it is no image that Pillow reads"):
        opened(tmp_path).read([0])


def test_an_array_that_is_cut_off_or_of_objects_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"a\.npy has 920 bytes, and its header says 928"):
        opened(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"b\.npy .*pickle"):
        opened(tmp_path / "b.npy")


# ---------------------------------------------------------------- files


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    source = opened(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n")
    with pytest.raises(DataChangedError, match=r"a\.csv has changed"):
        source.read([0])
    (tmp_path / "a.csv").unlink()
    with pytest.raises(DataUnreachableError, match=r"a\.csv: .*no such file"):
        source.read([0])


def test_compressed_and_mixed_and_unknown_files_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv", "c.jsonl", "d.xyz"):
        (tmp_path / name).write_text("x\n1\n")
    with pytest.raises(UsageError, match=r"is compressed, .*decompress it"):
        opened(tmp_path / "a.csv.gz")
    with pytest.raises(UsageError, match=r"format csv and jsonl: say format="):
        opened(tmp_path)
    with pytest.raises(UsageError, match=r"none that is known: say format="):
        opened(tmp_path / "d.xyz")
    assert opened(tmp_path / "d.xyz", format="csv").length == 1
    with pytest.raises(UsageError, match=r"window= does not fit the format csv"):
        opened(tmp_path / "b.csv", window=3)


def test_checksums_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match=r"a\.csv has the SHA-256 \w+ instead of sha256:00"):
        opened(tmp_path / "a.csv", checksums={"a.csv": "sha256:00"})
    with pytest.raises(UsageError, match=r"names b\.csv, which is none of the files"):
        opened(tmp_path / "a.csv", checksums={"b.csv": "00"})


def test_iterable_data_must_have_the_declared_samples() -> None:
    source = paceline.data.iterable(lambda shard: range(10 * shard, 10 * shard + 3), counts=[3, 3, 3])
    assert source.read([8, 0, 4]) == [22, 0, 11]
    for counts, what in (([3, 4], "3 samples, and counts= declares 4"), ([3, 2], "more samples")):
        with pytest.raises(DataError, match=rf"shard 1 has {what}"):
            paceline.data.iterable(lambda shard: range(3), counts=counts).read([3])
