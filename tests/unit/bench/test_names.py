"""The names of the ratios, the generated page, and how memory is counted."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from tests.kit.bench_modules import BENCH, load

SIZES = {"0.25", "25", "100", "400"}
NAMES = {
    "train": {
        "lenet_bsp_over_ddp", "lenet_bsp_over_independent", "lenet_asp_over_independent", "mlp_bsp_over_ddp",
        "mlp_bsp_over_independent", "lenet_one_over_plain", "mlp_one_over_plain", "lenet_over_rpc", "mlp_over_rpc",
        "lenet_over_ray_ps", "mlp_over_ray_ps",
    },
    "straggler": {"bsp_over_ideal", "ssp_over_ideal", "asp_over_ideal", "ddp_over_ideal"},
    "methods": {
        "allreduce_lenet_over_ddp", "allreduce_mlp_over_ddp", "allreduce_straggler_over_ddp", "gloo_lenet_over_ddp",
        "gloo_mlp_over_ddp", "gloo_straggler_over_ddp",
    },
    "memory": {"server_over_weights", "worker_over_plain"},
    "sync": {
        "shm_over_gloo", "tcp_over_gloo", "shm_over_memory_limit", "tcp_push_pull_gb_per_s", "shm_over_floor",
        "tcp_over_floor",
    },
    "crypt": {
        "sealed_over_curve", "sealed_over_plain", "sealed_over_insecure", "insecure_over_plain",
        "sealed_cpu_over_curve", "sealed_cpu_over_plain",
    },
    "hosts": {"hosts_over_ddp", "hosts_over_ddp_plain", "hosts_over_ddp_1gbit"},
    "engines": {"ray_over_hosts", "spark_over_hosts"},
    "start": {"run_over_plain", "embedded_over_plain"},
    "data": {"samplers_over_bound", "latency_over_training", "samplers_over_dataloader", "shm_over_queue"},
    "replicas": {"replicas_over_none", "replicas_over_none_tcp"},
}  # fmt: skip

tables = load("tables")


@pytest.mark.parametrize("name", NAMES)
def test_ratios_have_their_names_before_any_measurement(name: str) -> None:
    bench = load(name)
    ratios = bench.ratios({})
    assert set(ratios) == NAMES[name]
    flat = tables.flat(ratios)
    assert all(value is None for value in flat.values())
    assert set(bench.TARGETS) <= set(flat)


def test_sync_has_ratios_by_size_against_two_workers_and_the_limit() -> None:
    sync = load("sync")
    values = {"shm_2_25": [4.0], "shm_4_25": [9.0], "tcp_2_25": [12.0], "gloo_2_25": [16.0], "copy_25": [1.0]}
    ratios = sync.ratios({**values, "tcp_push_pull": [1.0, 3.0, 2.5]})
    assert all(set(ratios[key]) == SIZES for key in ("shm_over_gloo", "tcp_over_gloo", "shm_over_memory_limit"))
    assert ratios["shm_over_gloo"]["25"] == pytest.approx(0.25)
    assert ratios["tcp_over_gloo"]["25"] == pytest.approx(0.75)
    limit = load("figures").memory_limit_s(1.0, 2, load("harness").num_cores())
    assert ratios["shm_over_memory_limit"]["25"] == pytest.approx(4.0 / limit)
    assert ratios["tcp_push_pull_gb_per_s"] == pytest.approx(2.5)


def test_sync_has_ratios_over_the_floors_and_of_four_workers_once_measured() -> None:
    sync = load("sync")
    values = {"shm_2_25": [6.0], "floor_shm_2_25": [4.0], "tcp_2_25": [12.0], "floor_tcp_2_25": [8.0, 10.0, 12.0]}
    ratios = sync.ratios(values)
    assert ratios["shm_over_floor"] == {"0.25": None, "25": pytest.approx(1.5), "100": None, "400": None}
    assert ratios["tcp_over_floor"]["25"] == pytest.approx(1.2)
    assert not [name for name in ratios if name.endswith("_4_workers")]
    more = {"shm_4_400": [9.0], "floor_shm_4_400": [6.0], "tcp_4_400": [3.0], "gloo_4_400": [6.0]}
    ratios = sync.ratios(values | more)
    assert ratios["shm_over_floor_4_workers"]["400"] == pytest.approx(1.5)
    assert ratios["tcp_over_gloo_4_workers"]["400"] == pytest.approx(0.5)
    assert ratios["shm_over_floor"]["25"] == pytest.approx(1.5)
    assert set(sync.labels({2: [25.0], 4: [400.0]})) >= {*values, *more}


def test_ratios_between_hosts_are_steps_per_second_over_those_of_gloo() -> None:
    hosts = load("hosts")
    values = {"sealed_25": [8.0], "insecure_25": [4.0], "gloo_25": [6.0], "sealed_1gbit_100": [9.0]}
    ratios = hosts.ratios({**values, "gloo_1gbit_100": [9.0]})
    assert all(set(by_size) == {"25", "100"} for by_size in ratios.values())
    assert ratios["hosts_over_ddp"] == {"25": pytest.approx(0.75), "100": None}
    assert ratios["hosts_over_ddp_plain"] == {"25": pytest.approx(1.5), "100": None}
    assert ratios["hosts_over_ddp_1gbit"] == {"25": None, "100": pytest.approx(1.0)}
    assert set(hosts.labels(hosts.SIZES)) >= {*values, "gloo_1gbit_100"}


def test_ratios_of_engines_are_steps_per_second_over_those_of_hosts_beside_the_same_cluster() -> None:
    engines = load("engines")
    values = {"ray_steps": [19.0], "hosts_steps_ray": [20.0], "spark_steps": [5.0], "hosts_steps_spark": [4.0]}
    assert engines.ratios(values) == {"ray_over_hosts": pytest.approx(0.95), "spark_over_hosts": pytest.approx(1.25)}
    assert set(engines.labels()) >= set(values)


def test_ratios_over_parameter_servers_are_of_lock_step() -> None:
    train = load("train")
    values = {"lenet_bsp": [60.0], "lenet_asp": [90.0], "lenet_rpc": [30.0], "lenet_ray_ps": [20.0]}
    ratios = train.ratios(values)
    assert ratios["lenet_over_rpc"] == pytest.approx(2.0)
    assert ratios["lenet_over_ray_ps"] == pytest.approx(3.0)
    assert ratios["mlp_over_rpc"] is None


def test_without_ray_its_contender_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train = load("train")
    monkeypatch.setattr(train, "has_ray", lambda: True)
    with_ray = set(train.contenders(["lenet"], 1.0))
    monkeypatch.setattr(train, "has_ray", lambda: False)
    assert with_ray - set(train.contenders(["lenet"], 1.0)) == {"lenet ray_ps"}
    assert "pip install -c constraints.txt -e '.[ray]'" in train.WITHOUT_RAY


@pytest.mark.parametrize(
    ("name", "arguments"), [("sync", ({2: [0.25], 4: [0.25]}, 1.0)), ("replicas", (1.0, 1.0)), ("straggler", (1.0,))]
)
def test_every_contender_has_a_name_of_its_own(name: str, arguments: tuple[Any, ...]) -> None:
    assert len(load(name).contenders(*arguments)) == {"sync": 10, "replicas": 4, "straggler": 5}[name]


def test_the_floors_follow_from_the_measurements() -> None:
    limits = load("limits")
    assert set(limits.ratios({}).values()) == {None}
    values = {"copy_alone": [10.0], "copy_two": [15.0], "pass_alone": [40.0], "pass_two": [20.0], "loopback": [30.0]}
    found = limits.ratios(values)
    assert found["floor_shm_ms"] == pytest.approx(50.0)
    assert found["floor_tcp_ms"] == pytest.approx(170.0)
    assert found["floor_tcp_push_pull_gb_per_s"] == pytest.approx(2.0)
    assert found["two_copies_over_one"] == pytest.approx(1.5)
    assert limits.floor_shm_ms(15.0, 20.0, workers=4) == pytest.approx(80.0)
    assert limits.floor_tcp_ms(80.0, 30.0, workers=4) == pytest.approx(320.0)


def test_the_floors_of_a_small_model_are_measured_in_milliseconds() -> None:
    shm, tcp = load("limits").floors(100_000, workers=4)
    assert 0 < shm < tcp < 5_000


def test_the_memory_of_an_idle_server_is_subtracted() -> None:
    memory = load("memory")
    weights = memory.WEIGHTS_MB
    values = {"server_own": [300 + 4 * weights], "idle_own": [300.0], "worker_own": [650.0], "plain_own": [500.0]}
    assert memory.ratios(values) == {
        "server_over_weights": pytest.approx(4.0),
        "worker_over_plain": pytest.approx(1.3),
    }


def test_shared_memory_counts_where_it_is_writable_and_by_its_share() -> None:
    smaps = "\n".join(
        f"7f00-7f10 {perms} 00000000 00:01 7 {name}\nRss:  {rss} kB\nPss:  {pss} kB\nVmFlags: rd mr"
        for perms, rss, pss, name in [
            ("rw-s", 80, 40, "/memfd:blocks (deleted)"),
            ("r--s", 60, 20, "/memfd:blocks (deleted)"),
            ("rw-p", 500, 500, ""),
            ("r-xp", 900, 300, "/usr/lib/libtorch.so"),
        ]
    )
    assert load("resident").shared(smaps) == (80 * 1024, 60 * 1024)


def test_files_and_segments_may_not_grow_and_memory_may_grow_a_little() -> None:
    leak = load("leak")
    samples = [
        {"step": n, "seconds": n, "w resident_mb": 300 + n * 0.1, "w fds": 10.0, "shared_mb": 4.0} for n in range(9)
    ]
    assert leak.judge(samples, 2.0, 9)["grew"] == []
    assert leak.judge(samples, 0.5, 9)["grew"] == ["w resident_mb"]
    more = [sample | {"w fds": 10.0 + (n > 4), "shared_mb": 4.0 + n / 100} for n, sample in enumerate(samples)]
    assert leak.judge(more, 2.0, 9)["grew"] == ["w fds", "shared_mb"]


def test_one_more_buffer_is_no_leak_if_the_memory_then_stays_as_it_is() -> None:
    leak = load("leak")

    def samples(count: int, *, buffer_at: int, leaks_mb: float = 0.0) -> list[dict[str, float]]:
        return [
            {"step": n, "w resident_mb": 300 + n * 0.3, "shared_mb": 4.0 + (n >= buffer_at) + (n // 4) * leaks_mb}
            for n in range(count)
        ]

    assert not leak.steady(samples(9, buffer_at=5), 9)
    assert leak.steady(samples(14, buffer_at=5), 9)
    assert leak.judge(samples(14, buffer_at=5), 2.0, 9)["grew"] == ["w resident_mb"], (
        "resident memory counts from the start"
    )
    for count in range(9, 30):
        assert not leak.steady(samples(count, buffer_at=5, leaks_mb=0.25), 9), "a leak goes on"


def test_the_page_keeps_its_handwritten_text() -> None:
    page = "intro\n<!-- begin x: written by make bench -->\nold\n<!-- end x -->\nby hand\n"
    new = tables.insert(page, "x", "new")
    assert "old" not in new
    assert new.startswith("intro\n")
    assert new.endswith("<!-- end x -->\nby hand\n")
    assert tables.insert(new, "x", "new") == new
    with pytest.raises(ValueError, match="no place for y"):
        tables.insert(page, "y", "new")


def test_the_page_has_a_place_for_every_benchmark() -> None:
    page = (BENCH.parent / "docs" / "performance.md").read_text()
    for name in load("all").BENCHES:
        assert "TABLE" in tables.insert(page, name, "TABLE")


@pytest.mark.parametrize(
    ("value", "target", "met"), [(0.35, "≤ 0.35", True), (0.36, "≤ 0.35", False), (1.2, "≥ 1.2", True)]
)
def test_a_value_meets_its_target_at_the_bound(value: float, target: str, met: bool) -> None:
    assert tables.meets(value, target) is met


def test_a_missing_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit, match=r"python -m pip install -c constraints.txt -e '.\[bench\]'"):
        load("plots").require()
