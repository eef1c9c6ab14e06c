"""A predictor beside a real run: it follows the job through a failover, outlives it, and changes nothing in it.

The served model tells its version (tests/kit/scripts/version_probe.py): an answer that mixed two would show it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.real_runs import PACELINE, SCRIPTS, Live, live, run
from tests.kit.serving import Server, served, tensor

import paceline
from paceline.predict.card import read_card
from paceline.runtime.checkpoint_choice import choose_checkpoint
from paceline.runtime.model_files import export_model, open_runner

STEPS = 1500
PATH = "/v2/models/version_probe/infer"
REQUEST = tensor("x", [1, 3], [0, 0, 0])

pytestmark = [pytest.mark.real_run, pytest.mark.timeout(180)]


@dataclass
class Prober:
    """Asks again and again, from a thread, and keeps (version, age) of every answer."""

    server: Server
    seen: list[tuple[int, int, float]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            self.probe()
            time.sleep(0.01)

    def probe(self) -> None:
        try:
            answer = self.server.ask("POST", PATH, REQUEST)
            document = answer.json
            least, largest, frozen = document["outputs"][0]["data"]
            said = document["parameters"]
            if not least == largest == said["version"] == int(document["model_version"]) or frozen != 1.0:
                self.failed.append(f"mixed: {document}")
            self.seen.append((said["incarnation"], said["version"], said["age_s"]))
        except Exception as error:
            self.failed.append(repr(error))

    def close(self) -> None:
        self._end.set()
        self._thread.join(20.0)


@dataclass(frozen=True)
class Followed:
    """What a server that follows a run has shown, while the run lived and afterwards."""

    folder: Path
    seen: list[tuple[int, int, float]]
    failed: list[str]
    after: dict[str, Any]
    metadata: dict[str, Any]
    out: str
    run: Live


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory, warm: None) -> Iterator[Followed]:
    folder = tmp_path_factory.mktemp("serve")
    options = ["-w", "1", "-s", "2", "--replicas", "1", "--checkpoint-every", "300", "--keep", "9"]
    arguments = ["--steps", str(STEPS), "--sleep", "0.02"]
    with live(folder, options, SCRIPTS / "version_probe.py", *arguments) as running:
        running.until_version(3)
        with served(folder, "run", "--follow", "latest") as server:
            server.until_ready()
            prober = Prober(server)
            try:
                _disturb(running, prober)
                metadata = server.ask("GET", "/v2/models/version_probe").json
                running.hurry()
                running.wait().check()
                _wait_for(lambda: prober.seen[-1][1] == STEPS)
            finally:
                prober.close()
            after = server.ask("POST", PATH, REQUEST).json
            out = server.end()
        yield Followed(folder, prober.seen, prober.failed, after, metadata, out, running)


def _disturb(running: Live, prober: Prober) -> None:
    """Kill the server and then the worker, and wait until later versions are served each time."""
    _wait_for(lambda: len({version for _, version, _ in prober.seen}) > 3)
    for role in ("server-0", "worker-0"):
        before = prober.seen[-1][1]
        running.strike(role)
        _wait_for(lambda before=before: prober.seen[-1][1] > before + 20)


def _wait_for(reached: Any, timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_answer_mixes_versions_and_none_is_lost_through_a_failover(followed: Followed) -> None:
    assert followed.failed == []
    assert len(followed.seen) > 100
    versions = [version for _, version, _ in followed.seen]
    assert versions == sorted(versions)
    assert len(set(versions)) > 10


def test_answers_are_young_while_the_job_runs(followed: Followed) -> None:
    ages = sorted(age for _, version, age in followed.seen if version < STEPS)
    assert ages[len(ages) // 2] < 1.0


def test_the_predictor_outlives_the_job_with_its_last_version(followed: Followed) -> None:
    assert followed.after["parameters"]["version"] == STEPS
    assert followed.after["outputs"][0]["data"] == [STEPS, STEPS, 1.0]
    assert followed.metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert "requests that have come are answered" in followed.out


def test_the_reader_changed_nothing(followed: Followed) -> None:
    summary = json.loads((followed.folder / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["rewinds"], summary["state"]) == (STEPS, 0, "done")
    run([*PACELINE, "audit", "run"], followed.folder).check()


def test_a_checkpoint_is_exported_in_each_format_and_computes_the_same(followed: Followed) -> None:
    chosen = choose_checkpoint(followed.folder / "run")
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for kind in ("safetensors", "onnx", "pt2"):
        file = followed.folder / f"probe.{kind}"
        exported = export_model(chosen, file, kind)
        card = exported.card
        assert card is not None
        assert exported.difference <= 1e-4
        assert (card.lineage.version, card.lineage.step) == (STEPS, STEPS)
        runner = open_runner(file, read_card(file), trust=kind == "pt2")
        assert runner.run({"x": x})["output"].tolist() == (x + np.array([STEPS, STEPS, 1])).tolist()
    assert card is not None
    model = paceline.load(followed.folder / "probe.safetensors")
    assert model(torch.zeros(1, 3)).tolist() == [[STEPS, STEPS, 1.0]]
    assert (
        paceline.digest(model)
        == card.digest
        == json.loads((followed.folder / "run/summary.json").read_text())["digest"]
    )
    os.truncate(followed.folder / "probe.safetensors", 100)
    with pytest.raises(paceline.errors.UsageError, match="is not the file that its card describes"):
        paceline.load(followed.folder / "probe.safetensors")


@pytest.fixture(scope="module")
def pinned(followed: Followed) -> Iterator[Server]:
    """A server of two versions of the run."""
    with served(followed.folder, "run", "--pin", "600", "--pin", str(STEPS)) as server:
        server.until_ready()
        yield server
        server.end()


def test_two_versions_in_one_server_and_back_to_an_earlier_one(pinned: Server) -> None:
    assert pinned.ask("GET", "/v2/models/version_probe").json["versions"] == ["600", str(STEPS)]
    for version in (600, STEPS):
        answer = pinned.ask("POST", f"/v2/models/version_probe/versions/{version}/infer", REQUEST).json
        assert answer["outputs"][0]["data"][0] == version
    assert pinned.ask("POST", PATH, REQUEST).json["model_version"] == str(STEPS)


def test_an_independent_client_understands_the_server(pinned: Server) -> None:
    triton = pytest.importorskip("tritonclient.http")
    with triton.InferenceServerClient(pinned.address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("version_probe", "600")
        assert client.get_server_metadata()["name"] == "paceline"
        assert client.get_model_metadata("version_probe")["versions"] == ["600", str(STEPS)]
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for binary in (True, False):
            given = triton.InferInput("x", x.shape, "FP32")
            given.set_data_from_numpy(x, binary_data=binary)
            wanted = triton.InferRequestedOutput("output", binary_data=binary)
            for coding in (None, "gzip"):
                answer = client.infer(
                    "version_probe", [given], "600", [wanted], "id-1", request_compression_algorithm=coding
                )
                assert answer.as_numpy("output").tolist() == (x + np.array([600, 600, 1])).tolist()
                assert answer.get_response()["id"] == "id-1"
        wrong = triton.InferInput("y", x.shape, "FP32")
        wrong.set_data_from_numpy(x)
        with pytest.raises(triton.InferenceServerException, match="has no input 'y'"):
            client.infer("version_probe", [wrong])
        with pytest.raises(triton.InferenceServerException, match="no model 'other'"):
            client.get_model_metadata("other")


def test_slow_and_broken_clients_cost_the_others_nothing(pinned: Server) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n" % PATH.encode()
    slow = [socket.create_connection(("127.0.0.1", pinned.port)) for _ in range(300)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall((head[: number % len(head)], head + b"\r\n{", b"\x00\xff\r\n\r\n")[number % 3])
        began = time.monotonic()
        for _ in range(20):
            assert pinned.ask("POST", PATH, REQUEST).status == 200
        assert time.monotonic() - began < 5.0
        huge = pinned.ask("POST", PATH, b"", content_length="10000000000")
        assert (huge.status, "at most" in huge.json["error"]) == (413, True)
    finally:
        for connection in slow:
            connection.close()
    assert pinned.ask("POST", PATH, REQUEST).status == 200
