"""Jobs on files of every format: kills change no bit, bad records are left out by name, changed files are refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, SCRIPTS, Ended, Live, live, run
from tests.kit.sample_files import write_all
from tests.kit.web_server import every_fifth, web_server

pytestmark = pytest.mark.real_run

SCRIPT = SCRIPTS / "data_formats.py"
TWO = ["-w", "2", "-s", "2", "--seed", "7", "--max-restarts", "20"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    write_all(root)
    return root


def digest_of(ended: Ended) -> str:
    found = set(re.findall(r"DIGEST (\w+)", ended.check().out))
    assert len(found) == 1, ended.out
    return str(found.pop())


def audited(cwd: Path) -> dict[str, object]:
    """The audit of the run in `cwd`, which must be clean."""
    run([*PACELINE, "audit", "run", "--json", "audit.json"], cwd).check()
    report: dict[str, object] = json.loads((cwd / "audit.json").read_text())
    assert report["ok"], report
    return report


def kill_workers(running: Live, versions: list[int]) -> None:
    for number, version in enumerate(versions):
        running.until(lambda status, v=version: status.version >= v and status.workers_alive == 2)  # type: ignore[misc]
        running.strike(f"worker-{number % 2}")


def test_workers_that_are_killed_change_no_bit_whatever_the_format(files: Path, tmp_path: Path) -> None:
    """From files, and from a web server that refuses every fifth request."""
    undisturbed = digest_of(
        run([sys.executable, str(SCRIPT), str(files)], tmp_path, PACELINE_CACHE=str(tmp_path / "c"))
    )
    for kind in ("files", "web"):
        with web_server(files, every_fifth()) as (address, server):
            cwd = tmp_path / kind
            cwd.mkdir()
            words = [str(files), "--sleep", "0.04", *(["--url", address] if kind == "web" else [])]
            cache = str(tmp_path / f"cache-{kind}")
            with live(cwd, TWO, SCRIPT, *words, PACELINE_CACHE=cache) as running:
                kill_workers(running, [4, 24, 44])
                running.hurry()
                ended = running.wait()
            assert digest_of(ended) == undisturbed
            audited(cwd)
            assert (server.refused > 3) is (kind == "web")


def damage(root: Path) -> None:
    """Damage two records of CSV, one image and one row group."""
    part = root / "csv" / "part-2.csv"
    lines = part.read_bytes().split(b"\n")
    lines[-2] = b"no,number,here,0,0,x"
    lines[-3] = b"1,2"
    part.write_bytes(b"\n".join(lines))
    (root / "images" / "class-1" / "004.png").write_bytes(b"no image")
    part = root / "parquet" / "part-0.parquet"
    content = bytearray(part.read_bytes())
    content[40:400] = bytes(360)
    part.write_bytes(content)


def test_bad_records_are_left_out_by_name_and_a_file_that_changes_is_refused_at_the_resume(
    files: Path, tmp_path: Path
) -> None:
    root = tmp_path / "files"
    shutil.copytree(files, root)
    damage(root)
    words = [str(root), "--formats", "csv,images,parquet", "--epochs", "2"]
    cache = str(tmp_path / "c")
    failed = run([sys.executable, str(SCRIPT), *words], tmp_path, PACELINE_CACHE=cache)
    assert failed.code != 0
    assert re.search(r"record \d+ of \S+part-2\.csv: ", failed.out), failed.out
    undisturbed = digest_of(run([sys.executable, str(SCRIPT), *words, "--skip"], tmp_path, PACELINE_CACHE=cache))
    words += ["--skip", "--sleep", "0.2", "--loader-workers", "1"]
    with live(tmp_path, [*TWO, "--samplers", "1"], SCRIPT, *words, PACELINE_CACHE=cache) as running:
        running.until(lambda status: any(sampler.served for sampler in status.samplers))
        kill_workers(running, [3, 15])
        running.hurry()
        ended = running.wait()
    assert digest_of(ended) == undisturbed
    report = audited(tmp_path)
    named = " ".join(report["bad_records"])  # type: ignore[arg-type]
    assert "part-2.csv" in named
    assert "004.png" in named
    assert re.search(r"samples 0 to 15 of phase 2: row group 0 of \S+part-0\.parquet is damaged", named)
    assert report["bad_samples"] == 2 * (2 + 1 + 16)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["bad_records"] == 16
    assert not [text for text in summary["warnings"] if "sampler" in text], "it has the data of the workers"

    part = root / "csv" / "part-1.csv"
    part.write_bytes(part.read_bytes().replace(b"quoted", b"qu0ted"))
    resumed = run([*PACELINE, "run", "--resume", "run"], tmp_path, PACELINE_CACHE=cache)
    assert resumed.code != 0
    assert re.search(r"part-1\.csv has changed", resumed.out), resumed.out
