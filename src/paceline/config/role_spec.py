"""How a role's process is configured: one JSON document, which the engine writes and the process decodes once."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from paceline.config.dials import parse_mode
from paceline.errors import UsageError

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

Settings = TypeVar("Settings")


class LogSpec(msgspec.Struct, frozen=True):
    """What a process logs, and in which form."""

    level: str = "warning"
    format: str = "text"

    def __post_init__(self) -> None:
        if self.level not in LOG_LEVELS:
            raise UsageError(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {self.level!r}")
        if self.format not in LOG_FORMATS:
            raise UsageError(f"--log-format must be one of {', '.join(LOG_FORMATS)}, not {self.format!r}")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told: the script with its arguments, and the values that go over those of `join`.

    `overlap` says whether gradients are sent while backward runs; None leaves it to the rule. `local_workers` is how
    many workers the run has on this host. `faults` are planned faults, as JSON.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    seed: int | None = None
    mode: str | None = None
    slots: int | None = None
    threads: int = 1
    timeout_s: float = 30.0
    faults: str | None = None
    overlap: bool | None = None
    local_workers: int = 1

    def __post_init__(self) -> None:
        if self.mode is not None:
            parse_mode(self.mode)
        if self.slots is not None and self.slots < 1:
            raise UsageError(f"slots must be at least 1, not {self.slots}")
        if self.threads < 1:
            raise UsageError(f"PACELINE_THREADS must be at least 1, not {self.threads}")
        if self.timeout_s <= 0:
            raise UsageError(f"PACELINE_TIMEOUT_S must be positive, not {self.timeout_s}")


class ServerSpec(msgspec.Struct, frozen=True):
    """What a server is told: how many threads make large updates."""

    threads: int = 1


class SharedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What every role of a run is told.

    `run` is the run directory, `label` what its user calls it, `checkpoints` the place of its checkpoints. A role
    listens at `host`, which is an address or a network. `local` allows shared memory between processes of one host.
    `trace` is the folder in which the process records its trace, None for no trace.
    """

    run: str
    label: str = ""
    checkpoints: str = ""
    host: str = "127.0.0.1"
    local: bool = True
    trace: str | None = None
    log: LogSpec = LogSpec()


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one process: start number `start` of `name`. Only its role can read the `settings`."""

    role: str
    name: str
    start: int
    shared: SharedSpec
    settings: msgspec.Raw = msgspec.Raw(b"{}")

    def read(self, kind: type[Settings]) -> Settings:
        """The role's own settings.

        Raises:
            msgspec.ValidationError: they are not of this `kind`.
        """
        return msgspec.json.decode(self.settings, type=kind)


def encode_role_spec(spec: RoleSpec) -> bytes:
    """The document that is handed over."""
    return msgspec.json.encode(spec)


def decode_role_spec(document: bytes) -> RoleSpec:
    """The configuration in a document.

    Raises:
        msgspec.ValidationError: it is not one.
    """
    return msgspec.json.decode(document, type=RoleSpec)
