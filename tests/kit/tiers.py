"""Which test files are long, and which unit tests start real processes. `tests/conftest.py` reads this."""

from __future__ import annotations

LONGEST_FIRST = (
    "test_pages.py",
    "test_spark.py",
    "test_promise_06_commits_survive.py",
    "test_ray.py",
    "test_run.py",
    "test_resume.py",
    "test_launch.py",
    "test_bench.py",
    "test_fork_client.py",
    "test_elastic.py",
    "test_whole_api.py",
    "test_allreduce.py",
    "test_trace.py",
    "test_hosts.py",
    "test_promise_01_exactly_once.py",
    "test_promise_02_same_result.py",
    "test_agent_port.py",
    "test_promise_05_no_hang.py",
    "test_store.py",
    "test_seeds_more.py",
    "test_seeds_of_modes.py",
    "test_chaos.py",
    "test_processes.py",
    "test_examples.py",
    "test_promise_04_load_balance.py",
    "test_promise_03_bounded_staleness.py",
    "test_promise_07_any_order.py",
    "test_ownership.py",
    "test_ports.py",
    "test_link.py",
)
"""Processes share the tests by file: the long files begin first, so that the processes end at about the same time."""

REAL_UNITS = ("test_fork_client.py", "test_processes.py", "test_lazy_imports.py", "test_carried_agent.py")
"""Unit tests whose subject is the start of a process that loads torch: they cannot be quick."""
