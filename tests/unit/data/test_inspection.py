from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.kit.line import points
from tests.kit.sample_files import write_csv

import paceline
from paceline.cli.data import command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "csv").mkdir()
    write_csv(tmp_path / "csv")
    return tmp_path / "csv"


def run(*words: object) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_what_data_are_is_shown_to_people_and_programs(folder: Path) -> None:
    text = run("inspect", folder, "--columns", "x0,note")
    for line in (
        "kind         csv columns=x0,note",
        "samples      96 in 3 shards; full shuffle",
        "column       x0: float64",
        "column       note: str",
        f"file         {folder}/part-0.csv",
        "sample 95: {x0: ",
    ):
        assert line in text
    found = json.loads(run("inspect", folder, "--json", "--samples", "1"))
    assert found == json.loads(json.dumps(paceline.data.inspect(str(folder), samples=1).as_dict()))
    assert (found["samples"], found["num_files"], len(found["shown"])) == (96, 3, 1)


def test_the_fingerprint_follows_from_the_content(folder: Path) -> None:
    before = paceline.data.inspect(str(folder)).fingerprint
    assert paceline.data.inspect(str(folder)).fingerprint == before
    part = folder / "part-0.csv"
    part.write_bytes(part.read_bytes().replace(b"quoted", b"Quoted"))
    assert paceline.data.inspect(str(folder)).fingerprint != before


def test_a_bad_sample_and_a_data_set_are_shown(folder: Path) -> None:
    part = folder / "part-0.csv"
    part.write_bytes(part.read_bytes().replace(b"\n", b"\n1,2\n", 1))
    assert paceline.data.inspect(str(folder)).shown[0].startswith("0: bad: record 1 of ")
    assert paceline.data.inspect(points(8)).samples == 8


def test_an_index_is_made_once(folder: Path) -> None:
    assert run("index", folder) == "96 samples in 3 shards\n"
    assert len(list((folder.parent / "cache" / "indexes").glob("*/starts.npy"))) == 1


def test_parts_are_written_as_positions(folder: Path, tmp_path: Path) -> None:
    text = run("split", folder, "--fractions", "0.75,0.25", "--seed", "3", "--out", tmp_path / "parts")
    assert text.startswith("part 0: 72 samples (0.75), positions in ")
    places = [np.load(tmp_path / "parts" / f"part-{k}.npy") for k in (0, 1)]
    assert sorted(np.concatenate(places).tolist()) == list(range(96))
    part = paceline.data.split(paceline.data.open(folder), (0.75, 0.25), seed=3)[1]
    assert part.places(range(24)).tolist() == places[1].tolist()
