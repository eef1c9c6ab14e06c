"""The judgements of ``paceline doctor``."""

from __future__ import annotations

import pytest

from paceline.core.hosts.checkup import (
    Finding,
    Level,
    judge_address,
    judge_clock,
    judge_dial,
    judge_disk,
    judge_encryption,
    judge_files_limit,
    judge_machine,
    judge_ports,
    judge_proof,
    judge_shm,
    judge_unproven,
    judge_versions,
)

GIB = 1 << 30
AT = "10.0.0.1:7411"

FINDINGS = {
    "versions": (judge_versions({"paceline": "1", "torch": "2", "python": "3.11"}), Level.OK, "must be equal"),
    "no torch": (judge_versions({"paceline": "1", "torch": "none"}), Level.PROBLEM, "pip install torch"),
    "cryptography": (judge_encryption(""), Level.OK, "is there"),
    "no cryptography": (judge_encryption("missing"), Level.PROBLEM, "paceline[hosts]"),
    "address": (judge_address("10.0.0.2"), Level.OK, "10.0.0.2"),
    "loopback": (judge_address("127.0.0.1"), Level.WARNING, "--address IP"),
    "no way": (judge_address("", "this machine has no way to 10.0.0.1"), Level.PROBLEM, "check the network"),
    "ports": (judge_ports(32768, 60999), Level.OK, "32768 to 60999"),
    "unknown ports": (judge_ports(0, 0), Level.OK, "of the system's choice"),
    "reached": (judge_dial(AT, "", answered=True), Level.OK, AT),
    "refused": (judge_dial(AT, "refused", answered=True), Level.PROBLEM, "--listen"),
    "unreachable": (judge_dial(AT, "timed out", answered=False), Level.PROBLEM, "firewalls"),
    "proven": (judge_proof(AT, "supervisor/12-ab", "", ""), Level.OK, "its token is this one"),
    "another role": (judge_proof(AT, "coordinator/12-ab", "", ""), Level.PROBLEM, "port of a coordinator"),
    "another token": (judge_proof(AT, "", "token", "no proof"), Level.PROBLEM, "copy the file"),
    "most likely another token": (judge_proof(AT, "", "connection-handshake", "ended"), Level.PROBLEM, "copy the file"),
    "another version": (judge_proof(AT, "", "version", "it speaks 4"), Level.PROBLEM, "same version of Paceline"),
    "another user": (judge_proof(AT, "", "owner", "user 7 listens"), Level.PROBLEM, "as one user"),
    "another program": (judge_proof(AT, "", "", ""), Level.PROBLEM, "does not answer as a supervisor"),
    "no token": (judge_unproven(AT), Level.WARNING, "--token-file"),
    "files": (judge_files_limit(4096), Level.OK, "4096"),
    "few files": (judge_files_limit(256), Level.WARNING, "ulimit -n"),
    "any number of files": (judge_files_limit(-1), Level.OK, "no limit"),
    "shm": (judge_shm(2 * GIB, 2 * GIB), Level.OK, "2.0 GiB of 2.0 GiB free"),
    "small shm": (judge_shm(64 << 20, 64 << 20), Level.WARNING, "--shm-size"),
    "no shm": (judge_shm(0, 0), Level.WARNING, "there is none"),
    "disk": (judge_disk("/cache", 9 * GIB), Level.OK, "9.0 GiB free at /cache"),
    "full disk": (judge_disk("/cache", 1 << 20), Level.WARNING, "--dir DIR"),
    "read-only disk": (judge_disk("/cache", 0, "Read-only file system"), Level.PROBLEM, "PACELINE_CACHE"),
    "machine": (
        judge_machine(4, 8 * GIB, 6 * GIB, ("cuda:0",)),
        Level.OK,
        "4 cores, 6.0 GiB of 8.0 GiB memory free, cuda:0",
    ),
    "little memory": (judge_machine(1, 8 * GIB, 1 << 20), Level.WARNING, "fewer --cores"),
    "clock": (judge_clock(True, 9.0, 1.0), Level.OK, "synchronised"),
    "silent clock": (judge_clock(None, 9.0, 1.0), Level.OK, "does not say"),
    "free clock": (judge_clock(False, 9.0, 1.0), Level.WARNING, "time service"),
    "old clock": (judge_clock(True, 0.0, 1.0), Level.WARNING, "earlier"),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_each_finding_has_its_level_and_what_to_do(case: str) -> None:
    finding, level, text = FINDINGS[case]
    assert isinstance(finding, Finding)
    assert finding.level is level
    assert text in f"{finding.text} {finding.do}"
    assert bool(finding.do) == (level is not Level.OK), "a finding that is not ok says what to do, and no other"
