"""The options of a run: their names, their types, and the words by which messages name them.

`paceline run` and `paceline.launch` have the same options.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from paceline.config.live import AUTO, parse_slots
from paceline.errors import UsageError

File = str | os.PathLike[str]
Names = str | Sequence[str]


class RunOptions(TypedDict, total=False):
    """The options of a run. docs/reference.md describes each of them under `paceline run`.

    An option that is None is the same as one that is not given.
    """

    module: bool
    workers: int | str | None
    servers: int | str | None
    samplers: int | str | None
    replicas: int | None
    mode: str | None
    insecure_collective: bool | None
    ordered: bool | None
    slots: int | str | None
    seed: int | None
    threads: int | None
    checkpoint_every: int | str | None
    keep: int | None
    checkpoints: File | None
    files_limit: int | None
    max_restarts: int | None
    max_steps: int | None
    max_epochs: int | None
    max_samples: int | None
    max_time: float | str | None
    target: str | None
    patience: int | None
    min_delta: float | None
    plateau: int | str | None
    best: str | None
    keep_best: int | None
    on_nan: str | None
    tensorboard: bool | None
    metrics_port: int | None
    resume: File | None
    adopt: File | None
    allow_changes: bool
    dir: File | None
    summary: File | None
    trace: File | None
    engine: str | None
    ray_address: str | None
    master: str | None
    listen: str | None
    token_file: File | None
    hosts: Names | None
    min_hosts: int | None
    local_roles: bool | None
    shared_dir: bool | None
    same_cpu: bool | None
    insecure_blocks: bool | None
    log_level: str | None
    log_format: str | None


_PLACES = ("checkpoints", "resume")
"""Options that may be a URL: they stay texts, because a path would lose a slash."""


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, each as the plan of a run needs it.

    Raises:
        UsageError: there is no such option, or its value has another type; the message names it.
    """
    hints = get_type_hints(RunOptions)
    given = {}
    for name, value in options.items():
        if name not in hints:
            close = "".join(f"; do you mean {other}?" for other in difflib.get_close_matches(name, hints, 1))
            raise UsageError(f"there is no option {name}{close}")
        if value is not None:
            given[name] = _READERS[hints[name]](name, value)
    return given


def read_arguments(arguments: Sequence[object]) -> tuple[str, ...]:
    """The arguments of the script as texts.

    Raises:
        UsageError: they are one text, or not a sequence.
    """
    if isinstance(arguments, (str, bytes)) or not isinstance(arguments, Sequence):
        raise UsageError(f'args must be a list, such as ["--epochs", 3], not {arguments!r}')
    return tuple(map(str, arguments))


def in_python(message: str) -> str:
    """A message about options with their names in Python: ``--token-file FILE`` becomes ``token_file=FILE``.

    Commands, which are in backticks, stay as they are.
    """
    parts = message.split("`")
    parts[::2] = [_OPTION.sub(_argument, part) for part in parts[::2]]
    return "`".join(parts)


_OPTION = re.compile(r"(?<![\w/.-])--([a-z]+(?:-[a-z]+)*)(?: ([A-Z][A-Z:]*)\b)?")


def _argument(found: re.Match[str]) -> str:
    name, value = found[1].replace("-", "_"), found[2]
    if name not in RunOptions.__annotations__:
        return found[0]
    return name if value is None else f"{name}={value}"


# ---------------------------------------------------------------- types


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{_option(name)} must be a whole number, not {value!r}")
    return value


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{_option(name)} must be True or False, not {value!r}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{_option(name)} must be a text, not {value!r}")
    return value


def _number_or_word(name: str, value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise UsageError(f"{_option(name)} must be a whole number or a text, not {value!r}")
    if name == "slots":
        return AUTO if (number := parse_slots(value)) is None else number
    return str(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{_option(name)} must be a number, not {value!r}")
    return float(value)


def _time(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UsageError(f"{_option(name)} must be a time such as 2h or 45s, or seconds, not {value!r}")
    return str(value)


def _file(name: str, value: object) -> Path | str:
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{_option(name)} must be a path, not {value!r}")
    return os.fspath(value) if name in _PLACES else Path(value)


def _names(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{_option(name)} must be a list of names, not {value!r}")
    return tuple(item for item in value if item)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


_READERS: Mapping[object, Callable[[str, object], Any]] = {
    int | None: _whole,
    bool: _switch,
    bool | None: _switch,
    str | None: _text,
    int | str | None: _number_or_word,
    float | None: _number,
    float | str | None: _time,
    File | None: _file,
    Names | None: _names,
}
