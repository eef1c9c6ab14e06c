"""Count how far a reader walks through the files to follow one slot, one failover and one rewind.

    PYTHONPATH=src python tools/walk.py            a table
    PYTHONPATH=src python tools/walk.py --list     and, for each walk, the functions in order, one line per file visited
    PYTHONPATH=src python tools/walk.py --json     the figures as JSON

A reader follows the execution and reads each function once, where it is first entered. The walk is the sequence of the
files of these functions, in the order of first entry, over one whole episode:

- files: how many different files of the package are visited,
- changes: how often two consecutive functions are in different files,
- returns: how many changes lead to a file that was visited before. So returns = changes - (files - 1).

Four lines count the same walk in four ways:

- first entries: as above; code inside a function (a comprehension, a lambda, a local function) is an entry of its own,
- whole functions: such code counts with the function around it, which was read before,
- without queries: whole functions, without those whose body is one return statement, which a reader need not open, and
  without those that only timers call (`tick`, `on_tick`, `_tick`),
- every call: not only the first entry of each function.

The episodes:

- slot: a script in the embedded mode (coordinator, server and worker in one thread), in lock-step, with one slot per
  step. Traced from the first line of one loop body to the first line of the next one: gradients, seal, push, sum,
  commit, the next lease, the pull. Timers make some turns longer, so many turns are traced and the most frequent
  sequence counts.
- failover: a simulated job with one copy of each block. One server dies, and nothing else goes wrong. Traced from
  the message that tells the coordinator of the death to the delivery of the first commit after it.
- rewind: the same without copies.

Files of the simulator are left out: they stand for the network and the clock. The script uses only the public API,
`paceline.sim`'s scenario and trace, and the names of messages, so it runs unchanged on older commits.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import msgspec

import paceline

_PACKAGE = os.path.dirname(os.path.abspath(paceline.__file__)) + os.sep
_LEFT_OUT = ("sim" + os.sep,)
_WARM_UP = 20  # turns before the first traced one
_TURNS = 41  # traced turns
_SEEDS = range(200)
_TIMERS = ("tick", "on_tick", "_tick")

Entry = tuple[str, str]
"""A function: its file inside the package, and its qualified name."""


@dataclass(frozen=True)
class Figures:
    """One walk in numbers."""

    files: int
    changes: int
    returns: int


@dataclass(frozen=True)
class Walk:
    """One episode: each function at its first entry, every call, and the functions that a person does not open."""

    functions: tuple[Entry, ...]
    calls: tuple[Entry, ...]
    by_timers: frozenset[Entry] = frozenset()

    @property
    def whole_functions(self) -> tuple[Entry, ...]:
        """The first entries, with nested code counted as a part of the function around it."""
        return tuple(dict.fromkeys((file, name.split(".<locals>", 1)[0]) for file, name in self.functions))

    @property
    def without_queries(self) -> tuple[Entry, ...]:
        """The whole functions, without one-line queries and without timers."""
        return tuple(e for e in self.whole_functions if e not in self.by_timers and e[1] not in _queries(e[0]))

    def counted(self) -> dict[str, tuple[Entry, ...]]:
        """The ways to count, by their names in the output."""
        return {
            "first entries": self.functions,
            "whole functions": self.whole_functions,
            "without queries": self.without_queries,
            "every call": self.calls,
        }


@cache
def _queries(file: str) -> frozenset[str]:
    """The qualified names of functions in a file whose body is one return statement, or nothing."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                body = [s for s in child.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
                if not body or (len(body) == 1 and isinstance(body[0], ast.Return | ast.Pass)):
                    found.add(prefix + child.name)

    with open(_PACKAGE + file) as source:
        visit(ast.parse(source.read()), "")
    return frozenset(found)


class Tracer:
    """Records every call of a function of the package in this thread, between `start` and `stop`."""

    def __init__(self) -> None:
        self._calls: list[CodeType] = []
        self._called: set[CodeType] = set()  # not only by timers
        self._timer: FrameType | None = None  # the outermost timer that runs now
        self._inside: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Forget earlier calls and begin."""
        self._calls, self._called, self._timer = [], set(), None
        sys.setprofile(self._see)

    def stop(self) -> Walk:
        """End, and return what was recorded."""
        sys.setprofile(None)
        calls = self._calls
        by_timers = frozenset(map(_entry, set(calls) - self._called)) - set(map(_entry, self._called))
        return Walk(tuple(map(_entry, dict.fromkeys(calls))), tuple(map(_entry, calls)), by_timers)

    def _see(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            code = frame.f_code
            inside = self._inside.get(code)
            if inside is None:
                path = code.co_filename
                inside = path.startswith(_PACKAGE) and not path[len(_PACKAGE) :].startswith(_LEFT_OUT)
                self._inside[code] = inside
            if inside:
                self._calls.append(code)
                if self._timer is None and code.co_name in _TIMERS:
                    self._timer = frame
                if self._timer is None:
                    self._called.add(code)
        elif event == "return" and frame is self._timer:
            self._timer = None


def _entry(code: CodeType) -> Entry:
    return code.co_filename[len(_PACKAGE) :], code.co_qualname


def figures(entries: tuple[Entry, ...]) -> Figures:
    """The counts of one sequence of functions."""
    files = [file for file, _ in entries]
    changes = sum(a != b for a, b in pairwise(files))
    visited = len(set(files))
    return Figures(visited, changes, changes - max(visited - 1, 0))


def steps(entries: tuple[Entry, ...]) -> Iterator[tuple[str, bool, list[str]]]:
    """One item per visit of a file: the file, whether it was visited before, and the functions read there."""
    seen: set[str] = set()
    at = 0
    while at < len(entries):
        file = entries[at][0]
        names = []
        while at < len(entries) and entries[at][0] == file:
            names.append(entries[at][1])
            at += 1
        yield file, file in seen, names
        seen.add(file)


# ------------------------------------------------------------ the episodes


def slot() -> Walk:
    """One turn of the embedded mode, in steady state."""
    import torch

    torch.set_num_threads(1)
    tracer = Tracer()
    walks: list[Walk] = []
    with contextlib.redirect_stderr(io.StringIO()), paceline.join(seed=1) as job:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        job.prepare(model, optimizer)
        data = torch.utils.data.TensorDataset(torch.randn(64, 4))
        for turn, (x,) in enumerate(job.batches(data, 8, slots=1, epochs=8)):
            if turn > _WARM_UP and len(walks) < _TURNS:
                walks.append(tracer.stop())
            if turn >= _WARM_UP and len(walks) < _TURNS:
                tracer.start()
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            job.log(loss=loss)
            optimizer.step()
    assert len(walks) == _TURNS, f"the job has only {len(walks)} turns to trace"
    (functions, _), *_ = Counter(walk.functions for walk in walks).most_common()
    return min((w for w in walks if w.functions == functions), key=lambda w: len(w.calls))


def failover() -> Walk:
    """A server dies whose blocks have a copy."""
    return _simulated(replicas=1)


def rewind() -> Walk:
    """A server dies whose blocks have no copy."""
    return _simulated(replicas=0)


def _simulated(*, replicas: int) -> Walk:
    """The first seed counts whose server's death is told by the engine, in the middle of the job."""
    for seed in _SEEDS:
        episode = _Episode()
        with _listening(episode.note):
            outcome = _play(seed, replicas)
        if episode.walk is not None and (outcome.failovers, outcome.rewinds) == (replicas, 1 - replicas):
            return episode.walk
    raise SystemExit(f"no seed below {len(_SEEDS)} kills a server in the middle of its job")


def _play(seed: int, replicas: int) -> Any:
    from paceline.sim.fault_kinds import Fault
    from paceline.sim.habits import Habits
    from paceline.sim.network import Weather
    from paceline.sim.run import simulate
    from paceline.sim.scenario import make_scenario

    scenario = make_scenario(seed, mode="bsp", workers=1, servers=2, replicas=replicas)
    (phase, *_) = scenario.phases
    scenario = replace(
        scenario,
        job=msgspec.structs.replace(scenario.job, slots=1),
        cluster=replace(scenario.cluster, checkpoint_steps=2, checkpoint_s=0.0, hold=None),
        phases=(msgspec.structs.replace(phase, number=0, data_len=40, batch_size=2, epochs=1, drop_last=False),),
        validators=(),
        evaluate=-1,
        weather=Weather(),
        habits=Habits(provisional=0.0, push_again=0.0, partly_absent=0.0, mean_turn_s=0.08),
        speeds=(1.0,),
        faults=(Fault(at_s=2.0, kind="kill-server"),),
        heal_at_s=10.0,
        stop=None,
        careful=False,
        part_nbytes=1 << 30,
    )
    return simulate(scenario)


class _Episode:
    """From the delivery of `Exited` to that of the first commit under a later placement epoch."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        self._tracer = Tracer()
        self._epoch = -1
        self._began = False

    def note(self, what: str, message: object) -> None:
        """Something happened in the simulated world."""
        if what != "deliver" or self.walk is not None:
            return
        name = type(message).__name__
        if name == "Exited" and not self._began:
            self._began = True
            self._tracer.start()
        elif name == "Committed":
            epoch = msgspec.structs.astuple(message)[1]  # type: ignore[arg-type]
            if not self._began:
                self._epoch = max(self._epoch, epoch)
            elif epoch > self._epoch:
                self.walk = self._tracer.stop()


@contextlib.contextmanager
def _listening(heard: Callable[[str, object], None]) -> Iterator[None]:
    """Call `heard` for every line of the simulator's trace."""
    from paceline.sim.world import Trace

    plain = Trace.note

    def note(self: Any, now: float, what: str, who: str, peer: str, message: Any) -> None:
        plain(self, now, what, who, peer, message)
        heard(what, message)

    Trace.note = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        sys.setprofile(None)
        Trace.note = plain  # type: ignore[method-assign]


# ------------------------------------------------------------ output


def main() -> None:
    """Trace the three episodes and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="print the functions of each walk, in order")
    parser.add_argument("walks", nargs="*", metavar="WALK", help="slot, failover or rewind (default: all)")
    given = parser.parse_args()
    known = {"slot": slot, "failover": failover, "rewind": rewind}
    names = given.walks or list(known)
    if wrong := [name for name in names if name not in known]:
        parser.error(f"no walk is called {wrong[0]}: choose from {', '.join(known)}")
    walks = {name: known[name]() for name in names}
    if given.json:
        print(json.dumps({name: _as_dict(walk, listed=given.list) for name, walk in walks.items()}, indent=2))
        return
    print(f"{'walk':<10}{'':<17}{'files':>8}{'changes':>9}{'returns':>9}{'entries':>9}")
    for name, walk in walks.items():
        for number, (label, entries) in enumerate(walk.counted().items()):
            found = figures(entries)
            head = "" if number else name
            print(f"{head:<10}{label:<17}{found.files:>8}{found.changes:>9}{found.returns:>9}{len(entries):>9}")
    if given.list:
        for name, walk in walks.items():
            print(f"\n{name} (< marks a return to a file visited before)")
            visits = list(steps(walk.functions))
            for number, (file, again, functions) in enumerate(visits, 1):
                print(f"{number:4} {'<' if again else ' '} {file:<38} {', '.join(functions)}")
            print(f"\nreturns of the {name} by file")
            for file, times in Counter(file for file, again, _ in visits if again).most_common():
                print(f"{times:4}   {file}")


def _as_dict(walk: Walk, *, listed: bool) -> dict[str, object]:
    found: dict[str, object] = {
        label.replace(" ", "_"): {**vars(figures(entries)), "entries": len(entries)}
        for label, entries in walk.counted().items()
    }
    if listed:
        found["list"] = [f"{file}:{name}" for file, name in walk.functions]
    return found


if __name__ == "__main__":
    main()
