"""What a host must have in common with its supervisor, and which addresses it may announce."""

from __future__ import annotations

import pytest
from tests.kit.simulated_hosts import facts_of

from paceline.core.hosts.checks import address_problem, final_problem

VERSIONS = {"paceline": "0.4", "torch": "2.5", "python": "3.12"}


def test_equal_versions_and_a_plain_name_are_accepted() -> None:
    assert final_problem(facts_of("node-7.rack_2", versions=VERSIONS), VERSIONS) is None


@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("paceline", "install the same version of Paceline on every host"),
        ("torch", "install the same build of torch on every host"),
        ("python", "use the same minor version of Python on every host"),
    ],
)
def test_a_version_that_differs_is_refused_with_the_remedy(what: str, remedy: str) -> None:
    problem = final_problem(facts_of("a", versions={**VERSIONS, what: "0.0"}), VERSIONS)
    assert problem == f"a has {what} 0.0, the supervisor has {VERSIONS[what]}: {remedy}"
    missing = {name: version for name, version in VERSIONS.items() if name != what}
    assert f"a has {what} none" in str(final_problem(facts_of("a", versions=missing), VERSIONS))


@pytest.mark.parametrize("name", ["", "-a", "a b", "../a", "a/b", "a" * 65, "ä", "a\n"])
def test_a_name_that_is_no_plain_word_is_refused(name: str) -> None:
    assert "--name" in str(final_problem(facts_of(name, versions=VERSIONS), VERSIONS))


@pytest.mark.parametrize("cores", [0, -1])
def test_a_host_without_cores_is_refused(cores: int) -> None:
    assert "--cores" in str(final_problem(facts_of("a", cores=cores, versions=VERSIONS), VERSIONS))


@pytest.mark.parametrize(
    ("address", "listen", "why"),
    [
        ("10.0.0.2", "10.0.0.1", None),
        ("127.0.0.1", "127.0.0.1", None),
        ("fd00::2", "fd00::1", None),
        ("127.0.0.1", "10.0.0.1", "loopback"),
        ("::1", "fd00::1", "loopback"),
        ("0.0.0.0", "127.0.0.1", "the one IP address"),
        ("224.0.0.1", "10.0.0.1", "the one IP address"),
        ("node-b", "10.0.0.1", "give an IP address"),
    ],
)
def test_an_address_that_other_hosts_cannot_reach_is_named(address: str, listen: str, why: str | None) -> None:
    problem = address_problem(facts_of("b", address=address), listen)
    assert problem is None if why is None else f"--address {address}" in str(problem) and why in str(problem)
