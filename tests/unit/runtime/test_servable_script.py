from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import paceline
from paceline.core.predict.signature import Signature, TensorSignature
from paceline.errors import MismatchError, UsageError
from paceline.predict.module import build, describe, fill, own_tensors
from paceline.runtime.servable_script import script_servable

GOOD = """
import argparse
import torch
import paceline

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, first, second):
        return {"sum": self.layer(first) * self.scale, "index": second + 1}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int)
    width = parser.parse_args().width
    print("on the way")
    with paceline.join() as job:
        model = Model(width)
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        job.servable(lambda: Model(width), (torch.zeros(2, width), torch.zeros(2, dtype=torch.int64)))
        raise AssertionError("nothing is trained")
"""


def script(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "train.py"
    file.write_text(text)
    return file


def test_a_script_is_run_up_to_its_servable_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (sys.argv[:], sys.modules["__main__"], Path.cwd())
    path = sys.path[:]
    found = script_servable(script(tmp_path, GOOD), ["--width", "4"], cwd=tmp_path)
    assert (sys.argv, sys.modules["__main__"], Path.cwd()) == before
    assert sys.path[: len(path)] == path
    sys.path[:] = path
    assert capsys.readouterr() == ("", "on the way\n")
    model = build(found)
    assert describe(model, found) == Signature(
        (TensorSignature("first", "FP32", (-1, 4)), TensorSignature("second", "INT64", (-1,))),
        (TensorSignature("sum", "FP32", (-1, 3)), TensorSignature("index", "INT64", (-1,))),
    )
    weights = {name: torch.full_like(tensor, 2) for name, tensor in own_tensors(model).items()}
    fill(model, weights)
    assert model(torch.ones(1, 4), torch.zeros(1))["sum"].tolist() == [[20.0] * 3]
    with pytest.raises(MismatchError, match=r"layer.weight is \[3, 5\]"):
        fill(build(script_servable(script(tmp_path, GOOD), ["--width", "5"])), weights)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print(1)", "does not say how to build its model"),
        ("import paceline\njob = paceline.join()\nfor _ in job.batches([1], 1): pass", "uses job.batches before"),
        ("raise ValueError('no file')", "failed before .* ValueError: no file"),
        ("import sys\nsys.exit(3)", r"exit\(3\)"),
        ("import paceline\npaceline.join().servable(3, 4)", "takes a function that builds the model"),
        ("import paceline\npaceline.join().servable(dict, [])", "the example of job.servable is"),
    ],
)
def test_a_script_that_does_not_say_it_is_refused_with_the_remedy(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        script_servable(script(tmp_path, text))
    with pytest.raises(UsageError, match="is missing"):
        script_servable(tmp_path / "none.py")


def test_a_model_whose_outputs_are_no_rows_is_not_batched() -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(0)

    from paceline.data.servable import servable

    found = servable(Mean, torch.zeros(4, 2))
    assert describe(build(found), found).batched is False


def test_in_a_job_the_call_checks_its_arguments() -> None:
    with paceline.join() as job:
        job.servable(lambda: torch.nn.Linear(2, 1), torch.zeros(1, 2))
        with pytest.raises(UsageError, match="takes a function"):
            job.servable(torch.nn.Linear(2, 1), torch.zeros(1, 2))
