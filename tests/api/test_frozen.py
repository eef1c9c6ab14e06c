"""The public surface. A change here is a change for users: say so in the CHANGELOG, then change the test."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import click
import pytest

import paceline
from paceline.cli.main import cli
from paceline.config import load
from paceline.engines.run_options import RunOptions


def test_the_package_exports_exactly_these_names() -> None:
    assert paceline.__all__ == ["Job", "Run", "data", "datasets", "digest", "errors", "join", "launch", "load"]
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        _ = paceline.train


JOB = {
    "best": None,
    "batches": "data batch_size=None *slots=None *epochs=1 *steps=None *shuffle=True *collate_fn=None *drop_last=False "
    "*loader_workers=0 *fraction=1.0 *weights=None *on_bad_record='raise' *max_bad_records=100",
    "callbacks": None,
    "close": "*failed=False",
    "epoch": None,
    "evaluate": "metric data *batch_size=None",
    "fail": "trace",
    "lead": None,
    "log": "**values",
    "metrics": None,
    "on_plateau": "metric='' *patience=3 *factor=0.5 *min_delta=0.0",
    "passed": None,
    "prepare": "model optimizer scheduler=None *clip_norm=None *scheduler_every='step'",
    "save": "path",
    "servable": "factory example",
    "set": "*mode=None *slots=None *lr=None *checkpoint_every=None",
    "step": None,
    "stop": "reason='stopped by the script'",
    "stop_when": "condition=None *patience=0 *metric='' *min_delta=0.0",
    "validate": "data *every *batch_size=None",
}


def _describe(function: object) -> str:
    words = []
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if parameter.name == "self":
            continue
        stars = {"KEYWORD_ONLY": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        words.append(f"{stars}{parameter.name}{default}")
    return " ".join(words)


def test_the_job_has_exactly_these_methods_and_parameters() -> None:
    public = {name for name in dir(paceline.Job) if not name.startswith("_")}
    assert public == set(JOB)
    for name, expected in JOB.items():
        member = inspect.getattr_static(paceline.Job, name)
        if expected is None:
            assert isinstance(member, property), name
        else:
            assert _describe(member) == expected, name
    assert _describe(paceline.join) == "*seed=0 *mode='bsp' *dir=None"
    assert _describe(paceline.digest) == "model"
    assert _describe(paceline.load) == "path factory=None *trust=False"


RUN = {
    "directory": None,
    "scale": "*workers=None *servers=None *samplers=None",
    "status": "",
    "stop": "*save=True",
    "wait": "timeout=None",
}


def test_a_launched_run_has_exactly_these_methods_and_parameters() -> None:
    assert {name for name in dir(paceline.Run) if not name.startswith("_")} == set(RUN)
    for name, expected in RUN.items():
        member = inspect.getattr_static(paceline.Run, name)
        assert isinstance(member, property) if expected is None else _describe(member) == expected, name
    assert _describe(paceline.launch) == "script=None *args=() *show='all' **options"


def test_launch_has_every_option_of_the_command_by_its_name() -> None:
    command = cli.get_command(click.Context(cli), "run")
    assert command is not None
    typed = [p.name for p in command.params if isinstance(p, click.Option)]
    assert list(get_type_hints(RunOptions)) == typed


ERRORS = {
    "AuthenticationError": "TransportError",
    "BadRecordError": "DataError",
    "CheckpointError": "PacelineError",
    "ClusterLostError": "JobError",
    "DataChangedError": "DataError",
    "DataError": "PacelineError",
    "DataUnreachableError": "DataError",
    "DatasetUnavailableError": "PacelineError",
    "DeadlineError": "TransportError",
    "DeposedError": "StateError",
    "ExportError": "PacelineError",
    "FilesError": "PacelineError",
    "JobError": "PacelineError",
    "JobFailedError": "JobError",
    "JobRewoundError": "JobError",
    "JobStoppedError": "JobError",
    "LoopError": "UsageError",
    "MismatchError": "UsageError",
    "MissingMetricError": "UsageError",
    "PacelineError": "Exception",
    "PeerLostError": "TransportError",
    "PeerUnknownError": "TransportError",
    "RefusedFrameError": "TransportError",
    "RequestError": "PacelineError",
    "RunError": "PacelineError",
    "RunStoppedError": "RunError",
    "SaveError": "PacelineError",
    "SlotPoisonedError": "JobError",
    "StateError": "PacelineError",
    "TransportError": "PacelineError",
    "UpdateError": "JobError",
    "UsageError": "PacelineError",
}


def test_the_errors_are_exactly_these_with_these_bases() -> None:
    found = {
        name: error.__bases__[0].__name__
        for name, error in vars(paceline.errors).items()
        if isinstance(error, type) and issubclass(error, Exception)
    }
    assert found == ERRORS
    assert set(ERRORS) <= set((paceline.errors.__doc__ or "").split()), "the docstring must name every error"


FLAGS = {
    "run": "-m/--module -w/--workers -s/--servers --samplers --replicas --mode --insecure-collective "
    "--ordered --slots --seed --threads --checkpoint-every --keep "
    "--checkpoints --files-limit --max-restarts --max-steps --max-epochs --max-samples --max-time "
    "--target --patience --min-delta --plateau --best --keep-best --on-nan --tensorboard "
    "--metrics-port --resume --adopt --allow-changes --dir --summary "
    "--trace --engine --ray-address --master --listen --token-file --hosts --min-hosts --local-roles --shared-dir "
    "--same-cpu --insecure-blocks --log-level --log-format script arguments",
    "token": "file",
    "agent": "address --token-file --name --address --cores --label --dir --parent --log-level --log-format",
    "drain": "run host --undo",
    "doctor": "address --token-file --json",
    "examples": "names --dir",
    "join": "--log-level --log-format -m/--module run script arguments",
    "scale": "run -w/--workers -s/--servers --samplers",
    "set": "words",
    "demo": "--epochs --dir --log-level --log-format",
    "status": "run --json",
    "runs": "names --prune --older-than --state --dir --json",
    "checkpoints": "run --verify --json",
    "data": "",
    "export": "run version out --format --optimizer",
    "serve": "targets --host --port --follow --pin --batch --batch-delay --queue --deadline --max-body --refresh "
    "--workers --threads --token-file --allow-host --tls-cert --tls-key --drain --trust --log-level --log-format",
    "log": "run --follow --kind --json --rebuild --csv --parquet",
    "report": "run -o/--out",
    "compare": "runs -o/--out",
    "audit": "run --json",
}


@pytest.mark.parametrize("name", FLAGS)
def test_each_command_has_exactly_these_options(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    assert " ".join("/".join(p.opts) for p in command.params) == FLAGS[name]
    assert cli.list_commands(context) == [
        "run",
        "demo",
        "examples",
        "join",
        "token",
        "agent",
        "drain",
        "doctor",
        "scale",
        "set",
        "status",
        "runs",
        "checkpoints",
        "data",
        "export",
        "serve",
        "log",
        "report",
        "compare",
        "audit",
        "dev",
    ]


def test_the_environment_variables_are_exactly_these() -> None:
    names = {value for key, value in vars(load).items() if key.isupper() and isinstance(value, str)}
    assert names == {
        "PACELINE_CACHE",
        "PACELINE_FAULTS",
        "PACELINE_FORK",
        "PACELINE_HEARTBEAT_TIMEOUT_S",
        "PACELINE_HOST",
        "PACELINE_LANE",
        "PACELINE_LOCAL_WORKERS",
        "PACELINE_MODE",
        "PACELINE_NAME",
        "PACELINE_OVERLAP",
        "PACELINE_REACH_S",
        "PACELINE_REMOTE",
        "PACELINE_RUN",
        "PACELINE_SEED",
        "PACELINE_SLOTS",
        "PACELINE_SAMPLER_MIB",
        "PACELINE_SSH",
        "PACELINE_THREADS",
        "PACELINE_TIMEOUT_S",
        "PACELINE_TRACE",
    }
