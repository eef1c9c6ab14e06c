"""Lists the files of a directory that belong to the user's code: those that git would not ignore."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from paceline.core.files.manifest import MAX_FILES
from paceline.engines.fingerprint import is_installed
from paceline.engines.runs import is_run
from paceline.errors import FilesError

_NEVER = ("__pycache__", ".git")  # names of folders that are never listed
_RUNS = "runs"  # where `paceline run` makes run directories
_OUTSIDE_GIT = ("node_modules",)  # also left out where no repository says what belongs to it, as are dot folders
_GIT_S = 30.0
_MOST = 5 * MAX_FILES  # names at most: a script in a home directory would go through all of it
_LISTED = 5  # how many links a message names
_MOVE = "Put the script into a directory of its own"
_REMEDY = "Put a copy in its place, or add it to .gitignore if the script does not need it"


def list_files(root: Path, exclude: Collection[Path] = ()) -> dict[str, Path]:
    """The files below `root`, each by its relative path with ``/``; the value is the regular file with its content.

    Within a git work tree these are the files that git tracks or would track. Elsewhere a ``.gitignore`` counts as
    well, and dot folders and ``node_modules`` are left out. ``root/runs``, run directories, virtual environments,
    ``__pycache__`` and the paths of `exclude` never belong to them. A symbolic link stands for what it points to.

    Raises:
        FilesError: a symbolic link leaves `root`, or the directory cannot be read; the message names it.
    """
    root = root.resolve()
    listing = _Listing(root, {root / _RUNS, *(path.resolve() for path in exclude)})
    try:
        listing.add(root, "")
    except OSError as error:
        raise FilesError(f"cannot list the files in {root}: {error.filename}: {error.strerror}") from None
    if leaving := sorted(listing.leaving):
        more = f" and {len(leaving) - _LISTED} more" * (len(leaving) > _LISTED)
        raise FilesError(
            f"{', '.join(leaving[:_LISTED])}{more} in {root}: a symbolic link that leaves this directory leads nowhere "
            f"on another host. {_REMEDY}"
        )
    return dict(sorted(listing.found.items()))


class _Listing:
    """The files that were found below `root`, and the links that leave it."""

    def __init__(self, root: Path, left_out: Collection[Path]) -> None:
        self.found: dict[str, Path] = {}
        self.leaving: list[str] = []
        self._root = root
        self._left_out = left_out
        self._folders = {root: True}  # whether what is in a folder belongs to the files

    def add(self, folder: Path, prefix: str, within: frozenset[Path] = frozenset()) -> None:
        """Add the files of `folder`, under names that begin with `prefix`; `within` are the folders that led here."""
        for inner in _names(folder):
            name = prefix + inner.rstrip("/")
            path = self._root / name
            try:
                real = path.resolve(strict=True)
            except (OSError, RuntimeError):  # a tracked file that was removed, a link to nothing, a circle of links
                continue
            if not self._belongs(path):
                continue
            if not real.is_relative_to(self._root):
                self.leaving.append(name)
            elif not self._belongs(real):
                continue
            elif real.is_file():
                self.found[name] = real
            elif real.is_dir() and real not in {folder, *within} and not folder.is_relative_to(real):
                # A link to a folder, or a repository within this one: git names only the folder.
                self.add(real, f"{name}/", within | {folder})

    def _belongs(self, path: Path) -> bool:
        """Whether no rule leaves out the file or folder at `path`, which is below the root."""
        if path in self._left_out or path.name in _NEVER:
            return False
        if (known := self._folders.get(path)) is not None:
            return known
        if not self._belongs(path.parent):
            return False
        if not path.is_dir():
            return True
        self._folders[path] = not (is_run(path) or is_installed(path))
        return self._folders[path]


def _names(folder: Path) -> Sequence[str]:
    """The names that git lists below `folder`; without git, those of a walk."""
    if _git(folder, "check-ignore", "--quiet", ".") is None:
        tracked = _git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
        if tracked is not None:
            return tracked
    # No work tree, one that git does not trust, or one that ignores this folder as a whole: an empty repository
    # elsewhere lets git read the .gitignore files.
    with tempfile.TemporaryDirectory(prefix="paceline-git-") as empty:
        if _git(folder, "init", "--quiet", "--bare", empty) is not None:
            at = (f"--git-dir={empty}", f"--work-tree={folder}")
            others = _git(folder, *at, "ls-files", "--others", "--exclude-standard", "-z")
            if others is not None:
                return [name for name in others if not _is_hidden(name)]
    return list(_walk(folder))


def _git(folder: Path, *arguments: str) -> list[str] | None:
    """The names that a git command prints in `folder`; None if there is no git or the command fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FilesError(f"git has not listed the files in {folder} within {_GIT_S:.0f} s. {_MOVE}") from None
    except OSError:
        return None
    return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name}) if done.returncode == 0 else None


def _is_hidden(name: str) -> bool:
    """Whether a folder of `name` is left out where no repository says what belongs to it."""
    return any(part.startswith(".") or part in _OUTSIDE_GIT for part in name.rstrip("/").split("/")[:-1])


def _walk(root: Path) -> Iterator[str]:
    count = 0
    for folder, inner, files in os.walk(root):
        below = Path(folder).relative_to(root)
        links = [name for name in inner if (Path(folder) / name).is_symlink()]
        inner[:] = [name for name in inner if not _is_hidden(f"{name}/x") and name not in links]
        for name in (*files, *links):
            yield (below / name).as_posix()
            count += 1
        if count > _MOST:
            raise FilesError(f"{root} has more than {_MOST} files. {_MOVE}")
