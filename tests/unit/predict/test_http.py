"""The front as an ASGI application, without sockets: who is let in before the body is read, and how much is read."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from paceline.core.predict.admission import AdmissionRules
from paceline.core.predict.batching import BatchLimits
from paceline.core.predict.signature import Signature, TensorSignature
from paceline.predict.arrays import Arrays
from paceline.predict.endpoints import Endpoints
from paceline.predict.http import HttpFront
from paceline.predict.models import Loaded, Model, Models

TOKEN = "0123456789abcdef"
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
INFER = "/v2/models/m/infer"


class Sum:
    platform = "test"
    signature = Signature((TensorSignature("x", "FP32", (-1, 2)),), (TensorSignature("y", "FP32", (-1,)),))

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        return {"y": inputs["x"].sum(1)}


class Asked:
    """One answer: status, headers, JSON, and how many parts of the body were read."""

    def __init__(self, sent: Sequence[Any], read: int) -> None:
        self.status: int = sent[0]["status"]
        self.headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        self.body: bytes = sent[1]["body"]
        self.read = read

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Client:
    """Calls the front of a server with one model, which is loaded unless `empty`."""

    def __init__(self, *, token: str | None = None, empty: bool = False, limit: int = 1000) -> None:
        model = Model("m")
        if not empty:
            model.add(Loaded(Sum(), "7", incarnation=1, version=7, committed_at=0.0))
        self.models = Models([model])
        self.rules = AdmissionRules(token=token, max_body_nbytes=limit)

    def ask(self, method: str, path: str, body: bytes = b"", parts: int = 1, **headers: str) -> Asked:
        return self.ask_all([(method, path, body, parts, headers)])[0]

    def ask_all(self, calls: Sequence[tuple[str, str, bytes, int, dict[str, str]]]) -> list[Asked]:
        async def every() -> list[Asked]:
            with ThreadPoolExecutor(1) as executor:
                endpoints = Endpoints(self.models, BatchLimits(), executor, max_nbytes=10_000)
                front = HttpFront(endpoints, self.rules, max_nbytes=10_000, body_s=0.1)
                return [await self._one(front, *call) for call in calls]

        return asyncio.run(every())

    async def _one(self, front: HttpFront, method: str, path: str, body: bytes, parts: int, given: Any) -> Asked:
        sent: list[Any] = []
        read = 0
        size = -(-len(body) // max(1, parts)) or 1

        async def receive() -> Any:
            nonlocal read
            read += 1
            if read > parts:
                await asyncio.sleep(10)
            return {"type": "http.request", "body": body[(read - 1) * size : read * size], "more_body": read < parts}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = {"host": "localhost:8080"} | {name.replace("_", "-"): value for name, value in given.items()}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await front({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
        return Asked(sent, read)


def test_a_request_is_answered_with_the_version_that_made_the_answer() -> None:
    answer = Client().ask("POST", INFER, BODY, parts=3)
    document = json.loads(answer.body)
    assert (answer.status, document["outputs"][0]["data"], document["model_version"]) == (200, [3.0], "7")
    assert document["parameters"].keys() == {"version", "incarnation", "age_s"}
    assert answer.headers["paceline-version"] == "7"


def test_every_endpoint_refuses_whoever_may_not_before_the_body_is_read() -> None:
    client = Client(token=TOKEN)
    paths = ("/v2", "/v2/models", "/v2/models/m", "/v2/models/m/ready", INFER, "/metrics", "/page/m", "/zz")
    bad: list[tuple[dict[str, str], int]] = [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"authorization": f"Bearer {TOKEN}", "host": "evil.example"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "content_length": "10000000000"}, 413),
    ]
    cases = list(itertools.product(("GET", "POST"), paths, bad))
    answers = client.ask_all([(method, path, BODY, 1, headers) for method, path, (headers, _) in cases])
    for (method, path, (headers, status)), answer in zip(cases, answers, strict=True):
        assert (answer.status, answer.read) == (status, 0), (method, path, headers)
        assert answer.error
        assert answer.headers["connection"] == "close"
    assert client.ask("POST", INFER, BODY, authorization=f"Bearer {TOKEN}").status == 200


def test_the_page_and_the_probes_are_open_and_the_page_loads_nothing_from_elsewhere() -> None:
    client = Client(token=TOKEN)
    page = client.ask("GET", "/")
    assert page.status == 200
    assert b"http://" not in page.body + client.ask("GET", "/page.js").body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.ask("GET", "/", host="evil.example").status == 403
    assert client.ask("GET", "/v2/health/live", host="10.0.0.7:8080").status == 200
    assert client.ask("HEAD", "/v2/health/ready").body == b""


def test_a_body_is_read_up_to_the_limit_and_no_further() -> None:
    client = Client(limit=100)
    assert client.ask("POST", INFER, b"x" * 1000, parts=10).read == 2
    assert client.ask("POST", INFER, b"x" * 1000, parts=10).status == 413
    slow = client.ask("POST", INFER, b"", parts=0)
    assert (slow.status, "did not come within" in slow.error) == (408, True)


def test_a_compressed_body_is_bounded_by_what_it_becomes() -> None:
    client = Client()
    for coding, content in (("gzip", gzip.compress(BODY)), ("deflate", zlib.compress(BODY))):
        assert client.ask("POST", INFER, content, content_encoding=coding).status == 200
    bomb = gzip.compress(b" " * 1_000_000)
    big = Client(limit=5000).ask("POST", INFER, bomb, content_encoding="gzip")
    assert (big.status, "once it is decompressed" in big.error) == (413, True)
    assert client.ask("POST", INFER, gzip.compress(BODY)[:-9], content_encoding="gzip").status == 400
    assert client.ask("POST", INFER, BODY, content_encoding="gzip").status == 400
    assert client.ask("POST", INFER, BODY, content_encoding="br").status == 415


def test_paths_and_methods_that_are_not_there_get_the_error_object() -> None:
    client = Client()
    for method, path, status in (
        ("GET", "/v2/models/other", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v2/models/m/versions/8/infer", 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2/models", 405),
        ("GET", "/../../etc/passwd", 404),
    ):
        answer = client.ask(method, path, BODY)
        assert (answer.status, bool(answer.error)) == (status, True), path


def test_a_model_without_a_version_yet_is_not_ready_and_says_when_to_come_again() -> None:
    client = Client(empty=True)
    assert client.ask("GET", "/v2/health/ready").status == 503
    answer = client.ask("POST", INFER, BODY)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


def test_the_metrics_are_those_that_prometheus_reads() -> None:
    client = Client()
    calls: list[tuple[str, str, bytes, int, dict[str, str]]] = [
        ("POST", INFER, BODY, 1, {}),
        ("POST", INFER, b"{", 1, {}),
        ("GET", "/metrics", b"", 1, {}),
    ]
    text = client.ask_all(calls)[-1].body.decode()
    samples = {(s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert samples["paceline_requests_total", "m", "200"] == 1
    assert samples["paceline_requests_total", "m", "400"] == 1
    assert samples["paceline_batch_rows_bucket", "m", "+Inf"] == samples["paceline_batch_rows_count", "m"] == 1
    assert samples["paceline_model_version", "m"] == 7
