"""What a process tells of its machine."""

from __future__ import annotations

import socket

import torch

from paceline.config.role_spec import SharedSpec
from paceline.runtime.machine import host_name, server_fingerprint, worker_fingerprint


def test_the_name_of_the_host_is_the_given_one_or_that_of_the_machine() -> None:
    assert host_name(SharedSpec(run="r", host_name="b")) == "b"
    assert host_name(SharedSpec(run="r")) == socket.gethostname()


def test_a_fingerprint_names_what_the_bits_depend_on() -> None:
    for fingerprint in (server_fingerprint(), worker_fingerprint()):
        assert torch.__version__ in fingerprint
        assert torch.backends.cpu.get_cpu_capability() in fingerprint


def test_the_fingerprint_of_a_worker_has_its_threads_and_that_of_a_server_has_not() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        worker, server = worker_fingerprint(), server_fingerprint()
        torch.set_num_threads(2)
        assert (worker_fingerprint() != worker, server_fingerprint() == server) == (True, True)
    finally:
        torch.set_num_threads(before)
