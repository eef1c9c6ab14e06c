"""What all benchmarks share: runs contenders with a deadline in interleaved rounds, and keeps results after a failure.

A contender is a function that runs real processes and returns its figures by name. If it fails, the failure is
reported by name and the other contenders still run. The JSON is rewritten after every contender.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from figures import Marks, Spread, TooShortError

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
GIVE_UP_AFTER = 2
TAIL_LINES = 15


class ContenderError(Exception):
    """A contender failed; the message ends with its last lines of output."""


@dataclass(slots=True)
class Started:
    """A process of a contender, with its output in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def tail(self) -> str:
        """The last lines that the process printed."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, without the variables that would change a contender, plus `changes`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "OMP_", "MKL_"))}
    return {**kept, **changes}


def run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]],
    *,
    timeout_s: float,
    meanwhile: Callable[[list[int]], None] | None = None,
) -> None:
    """Run commands (each with its environment) at the same time until all succeed.

    `meanwhile` is called about every 20 ms with their process ids.

    Raises:
        ContenderError: a command failed, or did not end within `timeout_s`. All processes have been ended.
    """
    with tempfile.TemporaryDirectory() as folder, _processes(commands, Path(folder)) as started:
        deadline = time.monotonic() + timeout_s
        pids = [one.process.pid for one in started]
        while any(one.process.poll() is None for one in started):
            failed = [one for one in started if one.process.poll()]
            if failed:
                break
            if time.monotonic() > deadline:
                late = next(one for one in started if one.process.poll() is None)
                raise ContenderError(f"a process has not ended after {timeout_s:.0f} s; its last lines:\n{late.tail()}")
            if meanwhile is not None:
                meanwhile(pids)
            time.sleep(0.02)
        for one in started:
            if one.process.poll():
                raise ContenderError(
                    f"a process failed with exit code {one.process.returncode}; its last lines:\n{one.tail()}"
                )


@contextmanager
def _processes(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], folder: Path) -> Iterator[list[Started]]:
    started: list[Started] = []
    try:
        for number, (command, env) in enumerate(commands):
            output = folder / f"{number}.txt"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    list(command),
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            started.append(Started(process, output))
        yield started
    finally:
        for one in started:
            _end(one.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send Ctrl-C first, so that a launcher ends its roles; then kill the whole process group."""
    for number, patience_s in ((signal.SIGINT, 5.0), (signal.SIGKILL, 10.0)):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


# ------------------------------------------------------------------ contenders


def run_paceline(
    script: str,
    *arguments: str,
    workers: int,
    mode: str = "bsp",
    slots: int,
    servers: int = 1,
    replicas: int = 0,
    samplers: int = 0,
    lane: str = "",
    timeout_s: float,
    meanwhile: Callable[[list[int], Path], None] | None = None,
    leaves_marks: bool = True,
) -> list[Marks]:
    """Run `paceline run` without checkpoints; returns the marks of every worker, in the order of their names.

    `script` writes the marks to the folder `--out`; without `leaves_marks` it writes none. `lane` sets PACELINE_LANE;
    "" leaves it unset. `meanwhile` is called with the process id of the launcher and the folder `--out`.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.mkdir()
        shape = ["-s", str(servers), "--replicas", str(replicas)]
        if mode == "allreduce":
            shape = ["--insecure-collective"]
        if samplers:
            shape += ["--samplers", str(samplers)]
        command = [
            sys.executable, "-m", "paceline.cli.main", "run", "-w", str(workers), *shape, "--mode", mode,
            "--slots", str(slots), "--checkpoint-every", "0", "--dir", f"{folder}/run",
            str(HERE / script), "--out", str(out), "--peers", str(workers), *arguments,
        ]  # fmt: skip
        env = environment(**({"PACELINE_LANE": lane} if lane else {}))
        watch = None if meanwhile is None else lambda pids: meanwhile(pids, out)
        run_together([(command, env)], timeout_s=timeout_s, meanwhile=watch)
        return list(read_marks(out, workers).values()) if leaves_marks else []


def run_plain(
    script: str,
    *arguments: str,
    processes: int,
    cases: int = 1,
    silent: int = 0,
    timeout_s: float,
    meanwhile: Callable[[list[int], Path], None] | None = None,
) -> dict[str, Marks]:
    """Run plain PyTorch processes, one thread each, as ranks of torch.distributed; returns marks by name.

    Each process writes marks once for each of its `cases`, except for the `silent` ones (servers), which write none.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [sys.executable, str(HERE / script), "--out", str(out), *arguments]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        commands = [(command, environment(OMP_NUM_THREADS="1", RANK=str(rank), **meet)) for rank in range(processes)]
        watch = None if meanwhile is None else lambda pids: meanwhile(pids, out)
        run_together(commands, timeout_s=timeout_s, meanwhile=watch)
        return read_marks(out, (processes - silent) * cases)


def read_marks(out: Path, count: int) -> dict[str, Marks]:
    """The marks that the processes of a contender wrote, in the order of their names."""
    files = sorted(out.glob("*.marks.json"))
    if len(files) != count:
        raise ContenderError(f"the processes wrote {len(files)} of {count} files of marks")
    return {file.name.removesuffix(".marks.json"): _marks(file) for file in files}


def _marks(file: Path) -> Marks:
    return [(step, at) for step, at in json.loads(file.read_text())]


# ------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """How a figure is shown: as a bar called `name`, or as a point at `x` of the line called `name`."""

    group: str
    name: str
    unit: str
    x: float | None = None


@dataclass(slots=True)
class Results:
    """All measurements of one benchmark, and the file for them."""

    bench: str
    labels: Mapping[str, Label]
    targets: Mapping[str, str]
    ratios: Callable[[Mapping[str, Sequence[float]]], Mapping[str, Any]]
    json: Path | None = None
    notes: list[str] = field(default_factory=list)
    values: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    rounds: int = 0
    began: float = field(default_factory=time.time)
    stolen: tuple[float, float] = field(default_factory=lambda: _cpu_times())

    def plain(self) -> dict[str, list[float]]:
        """The values of every figure, one per round."""
        return {name: [value for _, value in rounds] for name, rounds in self.values.items()}

    def document(self) -> dict[str, Any]:
        """The content of the JSON."""
        figures = {}
        measured = self.plain()
        for name, label in self.labels.items():
            values = measured.get(name, [])
            spread = Spread.of(values)
            if spread is None:
                continue
            figures[name] = {
                "group": label.group, "name": label.name, "unit": label.unit, "x": label.x, "median": spread.median,
                "min": spread.low, "max": spread.high, "values": values,
            }  # fmt: skip
        return {
            "bench": self.bench,
            "command": f"python bench/{self.bench}.py --rounds {self.rounds}",
            "rounds": self.rounds,
            "ratios": self.ratios(measured),
            "ratios_by_round": [self.ratios(self._of_round(number)) for number in range(1, self.rounds + 1)],
            "targets": dict(self.targets),
            "figures": figures,
            "failures": self.failures,
            "notes": self.notes,
            "machine": machine(),
            "stolen_cpu": self._stolen(),
            "seconds": time.time() - self.began,
        }

    def save(self) -> None:
        """Write the JSON in one atomic replacement."""
        if self.json is not None:
            write_json(self.json, self.document())

    def _of_round(self, number: int) -> dict[str, list[float]]:
        return {name: [value for at, value in rounds if at == number] for name, rounds in self.values.items()}

    def _stolen(self) -> float:
        """The share of processor time that the host took during the benchmark (steal time)."""
        total, stolen = (now - then for now, then in zip(_cpu_times(), self.stolen, strict=True))
        return stolen / total if total else 0.0


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file atomically: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)


def run_rounds(results: Results, contenders: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int) -> None:
    """Run every contender once a round. Every second round reverses the order, so that drift affects all alike."""
    failed: dict[str, int] = dict.fromkeys(contenders, 0)
    for number in range(1, rounds + 1):
        results.rounds = number
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            if failed[name] >= GIVE_UP_AFTER:
                continue
            began = time.monotonic()
            try:
                figures = contenders[name]()
            except (ContenderError, TooShortError) as error:
                failed[name] += 1
                results.failures.append({"contender": name, "round": number, "error": str(error)})
                _say(f"round {number}/{rounds}  {name}: FAILED: {error}")
            else:
                for figure, value in figures.items():
                    results.values.setdefault(figure, []).append((number, value))
                shown = ", ".join(f"{value:,.4g} {results.labels[key].unit}" for key, value in figures.items())
                _say(f"round {number}/{rounds}  {name}: {shown}  ({time.monotonic() - began:.0f} s)")
            results.save()


def select(contenders: Mapping[str, Any], only: Sequence[str] | None) -> dict[str, Any]:
    """The contenders whose name contains one of the words in `only`; all contenders if `only` is None.

    Raises:
        SystemExit: no name contains any of the words.
    """
    taken = {name: run for name, run in contenders.items() if only is None or any(word in name for word in only)}
    if not taken:
        raise SystemExit(f"--only matches no contender; their names are: {'; '.join(contenders)}")
    return taken


def _say(line: str) -> None:
    print(line, flush=True)


def _cpu_times() -> tuple[float, float]:
    """All processor time of this machine so far, and the part that the host took."""
    ticks = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks), ticks[7]


def end_on_sigterm() -> None:
    """Let SIGTERM end this process and everything that it started, as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, Any]:
    """Describe this machine: processor, memory, kernel and versions."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[0].split(":", 1)[1].strip() if model else platform.machine(),
        "cores": num_cores(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


# ------------------------------------------------------------------ the command line


def parser(name: str, doc: str) -> argparse.ArgumentParser:
    """The options of every benchmark. From this call on, SIGTERM also ends the contenders."""
    end_on_sigterm()
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=5, help="interleaved rounds [5]")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results here, after every contender")
    made.add_argument("--plot", type=Path, metavar="FILE", default=OUT / f"{name}.png", help="[bench/out/NAME.png]")
    made.add_argument("--no-plot", dest="plot", action="store_const", const=None, help="only the table")
    made.add_argument("--only", nargs="+", metavar="WORD", help="only contenders whose name contains one of these")
    made.add_argument(
        "--quick", action="store_true", help="a short run of a small part, to show that the benchmark works"
    )
    return made
