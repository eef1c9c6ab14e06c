"""One synchronised step without compute between two hosts: Paceline beside Gloo's all-reduce plus optimizers.

    python bench/hosts.py --rounds 5 --json hosts.json

A host is a network namespace of this machine; veth pairs and a bridge join them, so this needs root. The supervisor and
the coordinator are in a third namespace. `paceline run --engine hosts` places one worker and one server on each host;
Gloo has one process on each. The step and the processes are those of `sync.py`.

- sealed: everything between hosts is encrypted, which is the default
- insecure: `--insecure-blocks`, gradients and weights travel as they are
- 1 Gbit/s: each host sends at most 1 Gbit/s (`tc`, a token bucket); Paceline is sealed

A ratio is Paceline's steps per second over Gloo's, which encrypts nothing.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import figures
import plots
import tables
from harness import HERE, ContenderError, Label, Results, environment, parser, read_marks, run_rounds, run_together
from harness import select as select_contenders
from sync import timeout_s, warmup

from paceline.testing.network import Network, problem

SIZES = (25.0, 100.0)
HOSTS = ("a", "b")
PORT = 7411
MASTER_PORT = "29400"
GBIT = "1gbit"
NAMES = {
    "sealed": "Paceline, sealed",
    "insecure": "Paceline, insecure blocks",
    "gloo": "Gloo + optimizers",
}
TARGETS = {
    "hosts_over_ddp.25": "≥ 0.6",
    "hosts_over_ddp.100": "≥ 0.6",
    "hosts_over_ddp_plain.25": "≥ 0.9",
    "hosts_over_ddp_plain.100": "≥ 0.9",
    "hosts_over_ddp_1gbit.25": "≥ 0.95",
    "hosts_over_ddp_1gbit.100": "≥ 0.95",
}


@contextmanager
def network(rate: str) -> Iterator[Network]:
    """The namespaces of the supervisor and of the two hosts, each of which sends at most `rate`; "" is no limit.

    Raises:
        ContenderError: `tc` refused the limit.
    """
    with Network(["supervisor", *HOSTS]) as made:
        for host in HOSTS if rate else ():
            limit = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb"]
            command = [*made.command(host), *limit, "latency", "50ms"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ContenderError(f"`{' '.join(limit)}` failed: {done.stderr.strip()}")
        yield made


def _paceline(mb: float, way: str, rate: str, seconds: float) -> dict[str, float]:
    """Milliseconds per step, one worker and one server on each host: the median over the steps."""
    with tempfile.TemporaryDirectory() as folder, network(rate) as joined:
        out, token = Path(folder) / "out", Path(folder) / "token"
        out.mkdir()
        token.touch(0o600)
        token.write_text(os.urandom(32).hex())
        address = f"{joined.address('supervisor')}:{PORT}"
        paceline = [sys.executable, "-m", "paceline.cli.main"]
        engine = ["--engine", "hosts", "--listen", address, "--token-file", str(token), "--shared-dir"]
        run = [
            *paceline, "run", *engine, "--min-hosts", "2", "-w", "2", "-s", "2", "--slots", "2",
            "--checkpoint-every", "0", "--dir", f"{folder}/run", *(["--insecure-blocks"] if way == "insecure" else []),
            str(HERE / "loop_sync.py"), "--out", str(out), "--peers", "2", "--mb", f"{mb:g}",
            "--seconds", str(seconds), "--warmup", str(warmup(mb)),
        ]  # fmt: skip
        agents = {
            host: [*paceline, "agent", address, "--token-file", str(token), "--name", host, "--cores", "1"]
            for host in HOSTS
        }
        env = environment(PACELINE_CACHE=f"{folder}/cache")
        commands = [([*joined.command(node), *words], env) for node, words in {"supervisor": run, **agents}.items()]
        run_together(commands, timeout_s=timeout_s(mb, 2, seconds) + 60.0)
        marks = list(read_marks(out, 2).values())
    key = f"{way}_{rate}_{mb:g}" if rate else f"{way}_{mb:g}"
    return {key: statistics.median(figures.step_times(marks, warmup(mb))) * 1e3}


def _gloo(sizes: Sequence[float], rate: str, seconds: float) -> dict[str, float]:
    """Milliseconds per step by size, one process on each host; above 25 MB of the faster of flat and buckets."""
    with tempfile.TemporaryDirectory() as folder, network(rate) as joined:
        out = Path(folder)
        words = [
            sys.executable, str(HERE / "loop_gloo.py"), "--out", folder, "--mb", *(f"{mb:g}" for mb in sizes),
            "--seconds", str(seconds), "--warmup", *(str(warmup(mb)) for mb in sizes),
        ]  # fmt: skip
        meet = {"MASTER_ADDR": joined.address(HOSTS[0]), "MASTER_PORT": MASTER_PORT, "WORLD_SIZE": "2"}
        commands = [
            (
                [*joined.command(host), *words],
                environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0", RANK=str(rank), **meet),
            )
            for rank, host in enumerate(HOSTS)
        ]
        ways = {mb: ["flat", "buckets"] if mb > 25 else ["flat"] for mb in sizes}
        run_together(commands, timeout_s=60.0 + sum(timeout_s(mb, 2, 2 * seconds) for mb in sizes))
        marks = read_marks(out, 2 * sum(map(len, ways.values())))
    found = {}
    for mb in sizes:
        medians = [
            statistics.median(figures.step_times([marks[f"{way}-{mb:g}.rank-{n}"] for n in (0, 1)], warmup(mb)))
            for way in ways[mb]
        ]
        found[f"gloo_{rate}_{mb:g}" if rate else f"gloo_{mb:g}"] = min(medians) * 1e3
    return found


def contenders(sizes: Sequence[float], seconds: float) -> dict[str, Callable[[], Mapping[str, float]]]:
    """The contenders, by name."""
    taken: dict[str, Callable[[], Mapping[str, float]]] = {}
    taken["gloo"] = functools.partial(_gloo, sizes, "", seconds)
    for mb in sizes:
        for way in ("sealed", "insecure"):
            taken[f"{way}, {mb:g} MB"] = functools.partial(_paceline, mb, way, "", seconds)
    for mb in sizes:
        taken[f"sealed, {mb:g} MB, 1 Gbit/s"] = functools.partial(_paceline, mb, "sealed", GBIT, seconds)
    taken["gloo, 1 Gbit/s"] = functools.partial(_gloo, sizes, GBIT, seconds)
    return taken


def labels(sizes: Sequence[float]) -> dict[str, Label]:
    """The labels of all figures, in the order of the table."""
    shown = {}
    for group, rate, ways in (("2 hosts", "", NAMES), ("2 hosts, 1 Gbit/s", GBIT, ("sealed", "gloo"))):
        for mb in sizes:
            for way in ways:
                key = f"{way}_{rate}_{mb:g}" if rate else f"{way}_{mb:g}"
                shown[key] = Label(group=group, name=NAMES[way], unit="ms", x=mb)
    return shown


def ratios(values: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | None]]:
    """Steps per second of Paceline over those of Gloo, by name and size; None if a part was not measured."""

    def over(ours: str, theirs: str) -> dict[str, float | None]:
        return {
            f"{mb:g}": figures.ratio(values.get(f"{theirs}_{mb:g}", []), values.get(f"{ours}_{mb:g}", []))
            for mb in SIZES
        }

    return {
        "hosts_over_ddp": over("sealed", "gloo"),
        "hosts_over_ddp_plain": over("insecure", "gloo"),
        "hosts_over_ddp_1gbit": over(f"sealed_{GBIT}", f"gloo_{GBIT}"),
    }


def main() -> int:
    """Run the rounds, print the tables, write the JSON and the plot."""
    options = parser("hosts", __doc__)
    options.add_argument("--sizes", type=float, nargs="+", default=SIZES, metavar="MB", help="[25 100]")
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement, after the warm-up [2]")
    args = options.parse_args()
    if (why := problem()) is not None:
        raise SystemExit(why)
    if args.plot is not None:
        plots.require()
    if args.quick:
        args.sizes, args.seconds = SIZES[:1], 0.3
    results = Results("hosts", labels(args.sizes), TARGETS, ratios, args.json)
    results.notes.append(f"The load average of the machine was {os.getloadavg()[1]:.1f} before the first round.")
    run_rounds(results, select_contenders(contenders(args.sizes, args.seconds), args.only), args.rounds)
    return tables.finish(results.document(), args.plot)


if __name__ == "__main__":
    sys.exit(main())
