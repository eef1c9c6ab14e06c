"""The package that users install: what a wheel and an sdist contain, and that a wheel runs without this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kit.real_runs import ROOT, Ended, run

BUILD = "import setuptools.build_meta as b, sys; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)"
EXAMPLES = {file.stem: file.read_text() for file in (ROOT / "examples").glob("*.py")}
FOLDER = "paceline/cli/example_scripts"


@dataclass(frozen=True, slots=True)
class Package:
    sdist: Path
    wheel: Path
    python: Path

    def call(self, *words: str, cwd: Path) -> Ended:
        """Run the Python of an environment that has the wheel, and nothing of this repository."""
        return run([self.python, *words], cwd, PYTHONPATH="").check()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    home = tmp_path_factory.mktemp("package")
    tree, made, place = home / "tree", home / "made", home / "environment"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "examples"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    made.mkdir()
    run([sys.executable, "-c", BUILD, made], tree).check()
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel]
    run(pip, home).check()
    (installed,) = place.glob("lib/*/site-packages")
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + os.linesep)  # torch and the others
    return Package(sdist, wheel, python)


def test_the_wheel_contains_the_examples_as_files_and_the_types(package: Package) -> None:
    with zipfile.ZipFile(package.wheel) as wheel:
        for name, text in EXAMPLES.items():
            assert wheel.read(f"{FOLDER}/{name}.example").decode() == text
        assert "paceline/py.typed" in wheel.namelist()
        assert "paceline/testing/chaos/train.example" in wheel.namelist()


def test_the_sdist_contains_the_examples_as_files(package: Package) -> None:
    with tarfile.open(package.sdist) as sdist:
        root = package.sdist.name.removesuffix(".tar.gz")
        for name, text in EXAMPLES.items():
            for path in (f"{root}/examples/{name}.py", f"{root}/src/{FOLDER}/{name}.example"):
                member = sdist.extractfile(path)
                assert member is not None
                assert member.read().decode() == text
        assert f"{root}/CHANGELOG.md" in sdist.getnames()


def test_an_installed_wheel_copies_an_example_and_trains_it(package: Package, tmp_path: Path) -> None:
    where = package.call("-c", "import paceline; print(paceline.__file__)", cwd=tmp_path).out.strip()
    assert Path(where).is_relative_to(package.python.parents[1])
    package.call("-m", "paceline", "examples", "tabular", cwd=tmp_path)
    done = package.call("tabular.py", "--epochs", "1", cwd=tmp_path)
    assert "digest " in done.out
    assert (tmp_path / "best.safetensors").exists()
