"""Writes scalars to an event file that TensorBoard reads. The format is TensorBoard's own; no package is needed."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

from paceline.coordinator.reader import LogReader
from paceline.core.effects import MarkFact

_MOST = 500  # logged steps between two marks that are written: every n-th, if there are more


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_CRC = _table()


def _masked(data: bytes) -> bytes:
    """The checksum of `data` as the format has it: CRC-32C, rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _text(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def event(at: float, step: int, values: dict[str, float]) -> bytes:
    """One event, framed: the scalars of a step. The wall time is `at`."""
    parts = [
        _text(1, _text(1, name.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value))
        for name, value in values.items()
    ]
    head = _varint(1 << 3 | 1) + struct.pack("<d", at) + _varint(2 << 3) + _varint(max(0, step))
    return framed(head + _text(5, b"".join(parts)))


def framed(content: bytes) -> bytes:
    """A record of the file: its length, its content, and a checksum of each."""
    length = struct.pack("<Q", len(content))
    return length + _masked(length) + content + _masked(content)


class ScalarFile:
    """An event file in `folder` with the values that steps logged and the results of validation.

    It begins with all that the log has, so files of earlier coordinators are removed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*.paceline"):
            old.unlink()
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.paceline"
        self._file = (folder / name).open("wb")
        version = _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + _text(3, b"brain.Event:2")
        self._file.write(framed(version))
        self._fact = self._logged = self._evaluated = 0

    def follow(self, reader: LogReader) -> None:
        """Write what marks cover since the last call.

        Raises:
            OSError: the disk is full.
        """
        for seq, row in reader.facts_after(self._fact):
            if isinstance(row.fact, MarkFact):
                self._fact = seq
                self._to(reader, row.fact, row.version)
        self._file.flush()

    def _to(self, reader: LogReader, mark: MarkFact, version: int) -> None:
        stride = max(1, (mark.logs - self._logged) // _MOST)
        for number, row in reader.logged_after(self._logged, mark.logs):
            if number % stride == 0:
                self._file.write(event(mark.at, row.step, {f"train/{k}": v for k, v in row.values.items()}))
        for number, result in reader.evaluations_after(self._evaluated):
            if number > mark.evaluations:
                break
            values = {f"validation/{k}": v for k, v in result.values.items()}
            self._file.write(event(mark.at, result.version, values))
        speeds = {f"speed/{name}_slot_s": seconds for name, (seconds, _) in mark.speeds.items()}
        self._file.write(event(mark.at, version, {"train/samples": mark.samples, **speeds}))
        self._logged, self._evaluated = max(self._logged, mark.logs), max(self._evaluated, mark.evaluations)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
