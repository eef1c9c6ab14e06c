"""Fetches the files of a published data set (a `Release`) from the Debian package that contains them."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

from paceline.datasets.idx_files import ProviderError, Release

logger = logging.getLogger(__name__)

DEBIAN_PACKAGE = "dataset-fashion-mnist"
DEBIAN_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")

_APT_TIMEOUT_S = 120.0


def fetch_package(release: Release, into: Path) -> None:
    """Fetch the files of `release` into the empty directory `into`.

    apt runs with a state in a temporary directory. The system's apt state is neither needed nor changed.

    Raises:
        ProviderError: apt-get or dpkg-deb is missing, or could not fetch the package.
    """
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise ProviderError(f"{' and '.join(missing)} not found")
    work = into.parent / "apt"
    for part in ("state/lists/partial", "cache/archives/partial", "unpacked"):
        (work / part).mkdir(parents=True)
    (work / "status").touch()
    (work / "apt.conf").write_text(
        f'Dir::State "{work}/state";\n'
        f'Dir::State::lists "{work}/state/lists";\n'
        f'Dir::State::status "{work}/status";\n'
        f'Dir::Cache "{work}/cache";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "0";\n'
        'Acquire::http::Timeout "10";\n'
        'Acquire::https::Timeout "10";\n'
        # As root, apt would download as another user, who cannot enter this private directory.
        'APT::Sandbox::User "root";\n'
        # The system's hooks would change the system's own state.
        "#clear APT::Update::Pre-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
    )
    logger.info("fetching the Debian package %s", DEBIAN_PACKAGE)
    apt = ["apt-get", "-q", "-c", str(work / "apt.conf")]
    # If one archive cannot be reached, the update fails, but the download may still work: only the download counts.
    update = _run([*apt, "update"], work, check=False)
    try:
        _run([*apt, "download", DEBIAN_PACKAGE], work)
        (package,) = work.glob("*.deb")
    except (ProviderError, ValueError) as error:
        raise ProviderError(f"{error}; the update before it printed: {update}") from None
    _run(["dpkg-deb", "-x", str(package), "unpacked"], work)
    unpacked = work / "unpacked" / DEBIAN_DIRECTORY.relative_to("/")
    for file in release.files(None):
        try:
            os.replace(unpacked / file.name, into / file.name)
        except OSError as error:
            raise ProviderError(f"{file.name} of the package cannot be used: {error}") from None


def _run(command: list[str], cwd: Path, *, check: bool = True) -> str:
    """Run a command to its end and return the last line of its output. With `check`, raise if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_APT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProviderError(f"{command[0]} did not end within {_APT_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise ProviderError(f"{command[0]} could not be started: {error}") from None
    lines = done.stdout.strip().splitlines()
    last = lines[-1] if lines else "nothing"
    if check and done.returncode != 0:
        raise ProviderError(f"{command[0]} ended with exit code {done.returncode}: {last}")
    return last
