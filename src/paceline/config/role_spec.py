"""The configuration of a process: one JSON document, which the launcher writes and the process decodes once."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from paceline.config.live import parse_schedule
from paceline.errors import UsageError

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

Settings = TypeVar("Settings")


class LogSpec(msgspec.Struct, frozen=True):
    """The lowest level that a process logs, and the format of its log."""

    level: str = "warning"
    format: str = "text"

    def __post_init__(self) -> None:
        if self.level not in LOG_LEVELS:
            raise UsageError(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {self.level!r}")
        if self.format not in LOG_FORMATS:
            raise UsageError(f"--log-format must be one of {', '.join(LOG_FORMATS)}, not {self.format!r}")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker: the script with its arguments, and values that override the arguments of `join`.

    With a `module`, the script is the file of that module, and the module is run as `python -m` does it.
    `overlap` says whether gradients are sent while backward runs; None lets Paceline decide. `local_workers` is how
    many workers the run has on this host. `faults` are planned faults for tests, as JSON. With `slots_auto`, the job
    chooses its slots by the speeds of its workers. With `collective`, the worker hosts a member, which can hold the
    blocks of the model together with those of the others; with `ordered`, they add slots in slot order. A sampler holds
    at most `sampler_mib` MiB of batches.
    """

    script: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()
    seed: int | None = None
    mode: str | None = None
    slots: int | None = None
    slots_auto: bool = False
    threads: int = 1
    timeout_s: float = 30.0
    faults: str | None = None
    overlap: bool | None = None
    local_workers: int = 1
    collective: bool = False
    ordered: bool = False
    sampler_mib: int = 512

    def __post_init__(self) -> None:
        if self.mode is not None:
            parse_schedule(self.mode)
        if self.slots is not None and self.slots < 1:
            raise UsageError(f"slots must be at least 1, not {self.slots}")
        if self.threads < 1:
            raise UsageError(f"PACELINE_THREADS must be at least 1, not {self.threads}")
        if self.sampler_mib < 1:
            raise UsageError(f"PACELINE_SAMPLER_MIB must be at least 1, not {self.sampler_mib}")
        if self.timeout_s <= 0:
            raise UsageError(f"PACELINE_TIMEOUT_S must be positive, not {self.timeout_s}")


class ServerSpec(msgspec.Struct, frozen=True):
    """The settings of a server: how many threads compute large updates."""

    threads: int = 1


class SharedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that every role of a run gets.

    `run` is the run directory, `label` the path that its user gave, `checkpoints` the place of its checkpoints. A role
    listens at `host`, which is an address or a network. `local` allows shared memory between processes of one host.
    `trace` is the folder in which the process records its trace, None for no trace. `host_name` is the name of the host
    on which the role runs; "" means the name that the system gives it. With `returns_files`, the files that the script
    saves are noted for the agent of the host, which returns them to the launcher. With `insecure_blocks`, blocks are
    not encrypted between hosts; messages without their blocks still are. `term` is the term by which the run holds the
    place of its checkpoints, and `term_key` proves it; 0 and "" for the run directory.
    """

    run: str
    label: str = ""
    checkpoints: str = ""
    host: str = "127.0.0.1"
    local: bool = True
    trace: str | None = None
    log: LogSpec = LogSpec()
    host_name: str = ""
    returns_files: bool = False
    insecure_blocks: bool = False
    term: int = 0
    term_key: str = ""


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
            msgspec.ValidationError: the settings are not of this `kind`.
        """
        return msgspec.json.decode(self.settings, type=kind)


def encode_role_spec(spec: RoleSpec) -> bytes:
    """Encode a configuration as a JSON document."""
    return msgspec.json.encode(spec)


def decode_role_spec(document: bytes) -> RoleSpec:
    """Decode a configuration from its JSON document.

    Raises:
        msgspec.ValidationError: the document is not a configuration.
    """
    return msgspec.json.decode(document, type=RoleSpec)
