"""The same job on 2 nodes of a cluster and on 2 hosts with agents: throughput, and the time to the first commit.

    python bench/engines.py --rounds 5 --json engines.json

All nodes are on this machine. Two workers and two servers synchronise 25 MB without compute, as in `sync.py`: the step
that an engine would slow down the most if it were in its path. While a cluster is up, the job runs first by
`--engine hosts` with two agents and then by the engine: both have the idle processes of the cluster beside them.

- steps/s: in steady state. A ratio is the engine's over that of hosts
- start: from the command to the first commit, on a cluster that is up
- empty: from the command to the end of an empty script (`ray job submit`), or of an empty action (Spark)
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import figures
import plots
import tables
from harness import HERE, ContenderError, Label, Results, environment, parser, read_marks, run_rounds, run_together
from harness import select as select_contenders
from sync import timeout_s, warmup

from paceline.testing.engines.ray_nodes import RayNodes

MB = 25.0
CORES = 2
IP = "127.0.0.1"  # that of the nodes
ADDRESS = f"{IP}:7412"
PACELINE = [sys.executable, "-m", "paceline.cli.main"]
ENGINES = {"ray": "Ray", "spark": "Spark"}
TARGETS = {"ray_over_hosts": "≥ 0.95", "spark_over_hosts": "≥ 0.95"}
_EMPTY_S = 120.0


@contextmanager
def ray_cluster(nodes: int, cores: int, *, dashboard: bool = False) -> Iterator[tuple[RayNodes, list[str]]]:
    """A Ray cluster of this machine, and the options of ``paceline run`` that use it."""
    found = RayNodes(cores, dashboard=dashboard)
    try:
        yield found, found.start(nodes)
    finally:
        found.close()


def _job(engine: Sequence[str], agents: int, seconds: float) -> tuple[float, float]:
    """Run the job; returns steps per second, and the seconds from the command to the first commit."""
    with tempfile.TemporaryDirectory() as folder:
        out, token = Path(folder) / "out", Path(folder) / "token"
        out.mkdir()
        token.touch(0o600)
        token.write_text(os.urandom(32).hex())
        env = environment(PACELINE_CACHE=f"{folder}/cache")
        by_hand = ["--token-file", str(token)]
        run = [
            *PACELINE, "run", *engine, *(by_hand if agents else []), "--shared-dir", "--min-hosts", "2", "-w", "2",
            "-s", "2", "--slots", "2", "--checkpoint-every", "0", "--dir", f"{folder}/run",
            str(HERE / "loop_sync.py"), "--out", str(out), "--peers", "2", "--mb", f"{MB:g}",
            "--seconds", str(seconds), "--warmup", str(warmup(MB)),
        ]  # fmt: skip
        own = ["--address", IP]
        commands = [
            ([*PACELINE, "agent", ADDRESS, *by_hand, *own, "--name", f"host-{number}", "--cores", str(CORES)], env)
            for number in range(agents)
        ]
        began = time.perf_counter()
        run_together([(run, env), *commands], timeout_s=timeout_s(MB, 2, seconds) + 120.0)
        marks = list(read_marks(out, 2).values())
    step_s = statistics.median(figures.step_times(marks, warmup(MB)))
    return 1 / step_s, min(at for each in marks for step, at in each if step > 0) - began


def _beside(engine: str, options: Sequence[str], seconds: float) -> dict[str, float]:
    """The job on hosts with agents and on the cluster that is up with these options."""
    hosts, hosts_start = _job(["--engine", "hosts", "--listen", ADDRESS], 2, seconds)
    steps, start = _job(options, 0, seconds)
    return {
        f"{engine}_steps": steps, f"hosts_steps_{engine}": hosts,
        f"{engine}_start": start, f"hosts_start_{engine}": hosts_start,
    }  # fmt: skip


def _ray(seconds: float) -> dict[str, float]:
    with ray_cluster(2, CORES) as (_, options):
        return _beside("ray", options, seconds)


def _ray_empty() -> dict[str, float]:
    """Seconds from ``ray job submit`` to the end of an empty script."""
    with ray_cluster(1, CORES, dashboard=True) as (nodes, _):
        tool = str(Path(sys.executable).with_name("ray"))
        command = [tool, "job", "submit", "--address", nodes.dashboard, "--", sys.executable, "-c", "pass"]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_EMPTY_S, env=environment(**nodes.environment)
        )
        if done.returncode != 0:
            raise ContenderError(f"`ray job submit` failed: {done.stderr[-1000:]}")
        return {"ray_empty": time.monotonic() - began}


def _spark(seconds: float) -> dict[str, float]:
    import engines_spark

    with engines_spark.cluster(2, CORES) as (nodes, options):
        return {"spark_empty": engines_spark.empty_action_s(nodes), **_beside("spark", options, seconds)}


def contenders(seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    return {
        "ray": functools.partial(_ray, seconds),
        "empty Ray job": _ray_empty,
        "spark": functools.partial(_spark, seconds),
    }


def labels() -> dict[str, Label]:
    """The labels of all figures, in the order of the table."""
    shown = {}
    for engine, name in ENGINES.items():
        shown[f"{engine}_steps"] = Label(group="25 MB, no compute", name=name, unit="steps/s")
        shown[f"hosts_steps_{engine}"] = Label(group="25 MB, no compute", name=f"hosts beside {name}", unit="steps/s")
    for engine, name in ENGINES.items():
        shown[f"{engine}_start"] = Label(group="command to first commit", name=name, unit="s")
        shown[f"hosts_start_{engine}"] = Label(group="command to first commit", name=f"hosts beside {name}", unit="s")
    shown["ray_empty"] = Label(group="empty", name="ray job submit of an empty script", unit="s")
    shown["spark_empty"] = Label(group="empty", name="an empty Spark action", unit="s")
    return shown


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """Steps per second on an engine over those on hosts; None if a part was not measured."""
    return {
        f"{engine}_over_hosts": figures.ratio(
            values.get(f"{engine}_steps", []), values.get(f"hosts_steps_{engine}", [])
        )
        for engine in ENGINES
    }


def main() -> int:
    """Run the rounds, print the tables, write the JSON and the plot."""
    options = parser("engines", __doc__)
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after the warm-up [3]")
    args = options.parse_args()
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.seconds = 0.5
    results = Results("engines", labels(), TARGETS, ratios, args.json)
    results.notes.append(f"The load average of the machine was {os.getloadavg()[1]:.1f} before the first round.")
    run_rounds(results, select_contenders(contenders(args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
