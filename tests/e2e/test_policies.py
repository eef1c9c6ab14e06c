"""Policies end real runs at the same step, calm or under kills; the best versions are kept, and load in PyTorch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.kit.hurry import HURRY
from tests.kit.real_runs import PACELINE, live, run

SCRIPT = """
import sys, time
from pathlib import Path
import torch, paceline
import torch.nn.functional as F
from torch.utils.data import TensorDataset

def data():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(512, 8, generator=g)
    return x, (x[:, :3] + 0.3 * torch.randn(512, 3, generator=g)).argmax(1)

def main():
    job = paceline.join(seed=7)
    x, y = data()
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.prepare(model, optimizer)

    @job.validate(TensorDataset(x[384:], y[384:]), every=5)
    def check(model, x, y):
        out = model(x)
        return {"accuracy": (out.argmax(1) == y).float(), "val_loss": F.cross_entropy(out, y, reduction="none")}

    if "plateau" in sys.argv:
        job.on_plateau("accuracy", patience=2, factor=0.5)

        @job.callbacks.on_validation
        def broken(metrics):
            raise ValueError("a callback breaks nothing")

        @job.callbacks.on_end
        def end(reason):
            print("END", reason, "BEST", job.best.metric, job.best.version)

    for x, y in job.batches(TensorDataset(x[:384], y[:384]), batch_size=16, slots=4, epochs=20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss = loss * (float("nan") if "nan" in sys.argv and job.step == 7 else 1.0)
        loss.backward()
        job.log(loss=loss)
        if "plateau" in sys.argv and not Path("hurry").exists():
            time.sleep(0.02)
        optimizer.step()

if __name__ == "__main__":
    main()
"""
OPTIONS = ["-w", "2", "-s", "1", "--best", "accuracy:max", "--keep-best", "2", "--keep", "1", "--patience", "4"]
pytestmark = pytest.mark.real_run


@dataclass(frozen=True)
class Stopped:
    dir: Path
    out: str
    summary: dict[str, Any]

    @property
    def versions(self) -> list[int]:
        return sorted(int(folder.name[-10:]) for folder in (self.dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Stopped]:
    """The same run twice: calm, and with a worker, the coordinator and a server killed."""
    found = []
    for victims in ((), ("worker-0", "coordinator", "server-0")):
        where = tmp_path_factory.mktemp("policies")
        (where / "script.py").write_text(SCRIPT)
        options = [*OPTIONS, "--checkpoint-every", "8"]
        with live(where, options, where / "script.py", "plateau") as running:
            for number, victim in enumerate(victims):
                running.until_version(7 + 9 * number)
                running.strike(victim)
            (where / HURRY).touch()
            ended = running.wait().check()
        found.append(Stopped(where / "run", ended.out, json.loads((where / "run" / "summary.json").read_text())))
    return found


def test_patience_and_plateau_act_at_the_same_step_also_under_kills(runs: list[Stopped]) -> None:
    calm, struck = runs
    assert (struck.summary["rewinds"], struck.summary["generations"]) == (1, 2)
    for key in ("steps", "stop_reason", "stopped", "digest", "metrics"):
        assert calm.summary[key] == struck.summary[key], key
    assert calm.summary["stop_reason"].startswith("--patience 4: accuracy was best at version ")
    plans = [[re.sub(r"i\d+", "", line) for line in known.summary["plan"]] for known in runs]
    assert plans[0] == plans[1]
    assert sum("lr x" in line for line in plans[0]) >= 1
    for known in runs:
        run([*PACELINE, "audit", "run"], known.dir.parent).check()


def test_the_best_versions_and_the_last_one_are_kept_and_no_other(runs: list[Stopped]) -> None:
    calm, struck = runs
    assert calm.versions == struck.versions
    best = calm.summary["best"]
    assert (best["metric"], best["version"]) == ("accuracy", struck.summary["best"]["version"])
    assert best["version"] in calm.versions
    assert calm.summary["steps"] in calm.versions
    assert len(calm.versions) <= 3


def test_a_callback_that_raises_is_named_and_breaks_nothing(runs: list[Stopped]) -> None:
    calm = runs[0]
    (warning,) = [text for text in calm.summary["warnings"] if "callbacks" in text]
    assert warning == (
        "job.callbacks.on_validation: broken raised ValueError: a callback breaks nothing; it is not called again"
    )
    (line,) = re.findall(r"END (.*) BEST accuracy (\d+)", calm.out)
    assert line == (calm.summary["stop_reason"], str(calm.summary["best"]["version"]))


def test_the_best_version_loads_in_plain_pytorch_with_its_optimizer(runs: list[Stopped]) -> None:
    calm = runs[0]
    command = [*PACELINE, "export", "run", "best", "best.safetensors", "--optimizer", "state.safetensors"]
    shown = run(command, calm.dir.parent).check().out
    where = calm.dir.parent
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.1)
    lines = shown.partition("from safetensors.torch import load_file")
    code = "".join(lines[1:]).replace("best.safetensors", str(where / "best.safetensors"))
    code = code.replace("state.safetensors", str(where / "state.safetensors"))
    exec(code, {"model": model, "optimizer": optimizer, "load_file": load_file, "safe_open": safe_open})
    g = torch.Generator().manual_seed(1)
    x = torch.randn(512, 8, generator=g)
    y = (x[:, :3] + 0.3 * torch.randn(512, 3, generator=g)).argmax(1)
    accuracy = float((model(x[384:]).argmax(1) == y[384:]).float().mean())
    assert accuracy == pytest.approx(calm.summary["best"]["value"])
    state = optimizer.state_dict()
    assert state["param_groups"][0]["momentum"] == 0.9
    assert [tuple(state["state"][n]["momentum_buffer"].shape) for n in (0, 1)] == [(3, 8), (3,)]
    assert f"version {calm.summary['best']['version']} " in shown
    refused = run([*PACELINE, "export", "run", "99999", "x.safetensors"], where).check(2).out
    assert f"keeps no version '99999': give best, last, or one of {', '.join(map(str, calm.versions))}" in refused


def test_a_number_that_is_not_finite_stops_the_run_and_names_the_samples(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [*PACELINE, "run", "-w", "2", "--on-nan", "stop", "--dir", "run", "script.py", "nan"]
    run(command, tmp_path).check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 8
    assert re.match(r"--on-nan stop: loss is nan at step 7 \(slot 0: samples \d+(, \d+){15}; ", summary["stop_reason"])
