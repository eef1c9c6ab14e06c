"""The options of a run on several hosts, and what is refused with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.engines.host_options import HostOptions, parse_address, take_host_options
from paceline.engines.plan import RunPlan
from paceline.errors import UsageError

HOSTS = {"engine": "hosts", "listen": "10.0.0.1:7411", "token_file": Path("token")}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("10.0.0.1", ("10.0.0.1", 7411)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("fd00::1", ("fd00::1", 7411)),
        ("[fd00::1]", ("fd00::1", 7411)),
    ],
)
def test_an_address_has_a_port_or_gets_the_default(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "--listen") == address
    assert HostOptions(listen=text).address == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be ADDRESS:PORT"),
        ("node-a:80", "must be ADDRESS:PORT"),
        ("10.0.0.1:http", "must be ADDRESS:PORT"),
        ("10.0.0.1:", "must be ADDRESS:PORT"),
        ("10.0.0:80", "must be ADDRESS:PORT"),
        ("0.0.0.0:80", "not a wildcard"),
        ("[::]:80", "not a wildcard"),
        ("224.0.0.1:80", "not a wildcard"),
        ("10.0.0.1:65536", "from 0 to 65535"),
        ("10.0.0.1:-1", "from 0 to 65535"),
    ],
)
def test_another_address_is_refused_by_the_name_of_the_option(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        HostOptions(listen=text)
    assert "--listen" in str(refused.value)


def test_fewer_than_one_host_are_refused() -> None:
    with pytest.raises(UsageError, match="--min-hosts must be at least 1, not 0"):
        HostOptions(listen="10.0.0.1", min_hosts=0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listen": "10.0.0.1"}, "--listen: .*add --engine hosts, or leave it out"),
        ({"engine": "local", "min_hosts": 2}, "--min-hosts: .*add --engine hosts"),
        ({"local_roles": True}, "--local-roles: .*add --engine hosts"),
        ({"shared_dir": True}, "--shared-dir: .*add --engine hosts"),
        ({"insecure_blocks": True}, "--insecure-blocks: .*add --engine hosts"),
        ({"same_cpu": True}, "--same-cpu: .*add --engine hosts"),
        ({"token_file": Path("t")}, "--token-file: .*add --engine hosts"),
        ({"workers": "auto"}, "--workers: .*add --engine hosts"),
        ({"servers": "per-host"}, "--servers: .*add --engine hosts"),
        ({"workers": "many"}, "--workers must be a whole number, or auto for a run on several hosts: 'many'"),
        ({"servers": "1.5"}, "--servers must be a whole number, or per-host for a run on several hosts: '1.5'"),
        ({**HOSTS, "listen": "everywhere"}, "--listen must be ADDRESS:PORT"),
        ({**HOSTS, "listen": "0.0.0.0:7411"}, "not a wildcard"),
        ({"engine": "hosts", "token_file": Path("t")}, "--engine hosts: give --listen ADDR:PORT"),
        ({"engine": "hosts", "listen": "10.0.0.1"}, "give --token-file FILE .`paceline token FILE` makes one"),
        ({**HOSTS, "min_hosts": 0}, "--min-hosts must be at least 1"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_with_the_remedy(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        take_host_options(dict(given), None)


def test_a_run_on_this_machine_needs_none_of_these_options() -> None:
    assert take_host_options({"workers": "3", "servers": "2"}, None) == {"workers": 3, "servers": 2}
    assert take_host_options({"engine": "local"}, None) == {}


def test_the_options_become_one_value() -> None:
    taken = take_host_options({**HOSTS, "workers": "auto", "servers": "per-host", "replicas": 1}, None)
    assert taken["hosts"] == HostOptions(listen="10.0.0.1:7411", min_hosts=2, auto_workers=True, servers_per_host=True)
    assert (taken["workers"], taken["servers"]) == (1, 2), "until the hosts are there"
    assert taken["token_file"] == Path("token")
    assert take_host_options({**HOSTS, "min_hosts": 5}, None)["hosts"].min_hosts == 5


def test_a_run_that_goes_on_keeps_its_options_except_those_that_are_given() -> None:
    kept = HostOptions(listen="10.0.0.1:7411", min_hosts=3, auto_workers=True)
    assert take_host_options({}, kept) == {"hosts": kept}
    changed = take_host_options({"listen": "10.0.0.2:7411"}, kept)["hosts"]
    assert (changed.listen, changed.min_hosts, changed.auto_workers) == ("10.0.0.2:7411", 3, True)
    assert take_host_options({"workers": "2"}, kept)["workers"] == 2


def test_copies_need_hosts_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    values: dict[str, Any] = {"script": tmp_path / "train.py", "run": tmp_path, "servers": 3}
    few = HostOptions(listen="10.0.0.1", min_hosts=2)
    with pytest.raises(UsageError, match=r"--replicas 2 .* needs --min-hosts 3 or more, not 2"):
        RunPlan(**values, replicas=2, hosts=few)
    RunPlan(**values, replicas=1, hosts=few)
