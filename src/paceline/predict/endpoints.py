"""The endpoints of a predictor: each path of the Open Inference Protocol, the metrics and the page, as plain calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from paceline.core.predict.batching import BatchLimits
from paceline.errors import RequestError
from paceline.predict import metrics as text
from paceline.predict.calls import PAGE, Call, Reply, json_reply, refusal
from paceline.predict.metrics import Metrics
from paceline.predict.models import Model, Models
from paceline.predict.protocol import (
    BINARY,
    HEADER_LENGTH,
    JSON,
    decode_request,
    encode_response,
    metadata,
)
from paceline.predict.queue import ModelQueue

logger = logging.getLogger(__name__)


_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Endpoints:
    """Answers calls by the models of this process. Use it from one event loop."""

    def __init__(self, models: Models, limits: BatchLimits, executor: Executor, *, max_nbytes: int) -> None:
        """Batches are computed by `executor`; the inputs of a request have at most `max_nbytes` bytes once decoded."""
        self.models = models
        self.metrics = Metrics()
        self._limits = limits
        self._max_nbytes = max_nbytes
        self._queues = {model.name: ModelQueue(model, limits, executor, self._on_batch(model.name)) for model in models}
        self.draining = False

    def _on_batch(self, name: str) -> Any:
        def note(rows: int, seconds: float) -> None:
            self.metrics.batch_rows.observe(rows, name)
            self.metrics.batch_seconds.observe(seconds, name)

        return note

    @property
    def is_ready(self) -> bool:
        """Whether every model can answer, and the server does not end."""
        return self.models.is_ready and not self.draining

    def note_refused(self, status: int) -> None:
        """Count a request that was refused before its body was read."""
        self.metrics.refused.add(str(status))

    async def answer(self, call: Call) -> Reply:
        """The answer to a call; a call that is refused gets the protocol's error object."""
        try:
            return await self._answer(call)
        except RequestError as error:
            return refusal(error)
        except Exception:
            logger.exception("%s %s failed", call.method, call.path)
            return refusal(RequestError(500, "the server failed on this request; its log says why"))

    async def _answer(self, call: Call) -> Reply:
        words = call.path.strip("/").split("/")
        match words:
            case ["v2", "models", name, "infer"]:
                _only(call, "POST")
                return await self._infer(call, name, "")
            case ["v2", "models", name, "versions", label, "infer"]:
                _only(call, "POST")
                return await self._infer(call, name, label)
        _only(call, "GET", "HEAD")
        match words:
            case ["v2"]:
                return json_reply({"name": "paceline", "version": _version(), "extensions": ["binary_tensor_data"]})
            case ["v2", "health", "live"]:
                return json_reply({"live": True})
            case ["v2", "health", "ready"]:
                return json_reply({"ready": self.is_ready}, 200 if self.is_ready else 503)
            case ["v2", "models"]:
                return json_reply({"models": [model.name for model in self.models]})
            case ["v2", "models", name]:
                return self._metadata(name, "")
            case ["v2", "models", name, "versions", label]:
                return self._metadata(name, label)
            case ["v2", "models", name, "ready"]:
                return self._ready(name, "")
            case ["v2", "models", name, "versions", label, "ready"]:
                return self._ready(name, label)
            case ["metrics"]:
                return Reply(200, self.metrics.text(self._gauges()).encode(), {"content-type": text.TYPE})
            case ["page", name]:
                return self._about(self.models.named(name))
        if call.path in PAGE:
            return _page(call.path)
        raise RequestError(404, f"there is nothing at {call.path[:100]}")

    # ------------------------------------------------------------ models

    def _metadata(self, name: str, label: str) -> Reply:
        model = self.models.named(name)
        loaded = model.version(label)
        known = metadata(name, model.versions, loaded.runner.platform, loaded.runner.signature)
        return json_reply({**known, "parameters": loaded.parameters()})

    def _ready(self, name: str, label: str) -> Reply:
        model = self.models.named(name)
        ready = model.is_ready and not self.draining
        if ready:
            model.version(label)
        return json_reply({"name": name, "ready": ready}, 200 if ready else 503)

    def _about(self, model: Model) -> Reply:
        """What the page shows besides the protocol's metadata."""
        now = model.current.parameters() if model.is_ready else {}
        return json_reply({"name": model.name, "example": model.example, "about": model.about, "now": now})

    async def _infer(self, call: Call, name: str, label: str) -> Reply:
        began = time.monotonic()
        known, status = "", 500
        try:
            model = self.models.named(name)
            known = model.name
            if self.draining:
                raise RequestError(503, "the server ends", retry_after_s=1.0)
            request = decode_request(
                call.body,
                call.header_length,
                model.signature,
                max_rows=self._limits.max_queued_rows,
                max_nbytes=self._max_nbytes,
            )
            answer = await self._queues[name].ask(request, label)
            loaded, signature = answer.loaded, model.signature
            parameters = loaded.parameters()
            body, head = encode_response(
                request, signature, answer.outputs, model=name, version=loaded.label, parameters=parameters
            )
            status = 200
        except RequestError as error:
            status = error.status
            raise
        finally:
            self.metrics.requests.add(known, str(status))
            if status == 200:
                self.metrics.seconds.observe(time.monotonic() - began, known)
        headers = {"content-type": JSON, "paceline-version": loaded.label}
        if "age_s" in parameters:
            headers["paceline-age"] = f"{parameters['age_s']:g}"
        if head is not None:
            headers |= {"content-type": BINARY, HEADER_LENGTH: str(head)}
        return Reply(200, body, headers)

    def _gauges(self) -> Sequence[tuple[str, str, str, float]]:
        found: list[tuple[str, str, str, float]] = []
        for model in self.models:
            name = model.name
            found.append(("paceline_queued_rows", "Rows that wait.", name, self._queues[name].queued_rows))
            found.append(("paceline_model_ready", "1 if the model can answer.", name, float(model.is_ready)))
            if model.is_ready:
                now = model.current.parameters()
                found.append(("paceline_model_version", "The version that answers.", name, model.current.version))
                if "age_s" in now:
                    found.append(("paceline_model_age_seconds", "Since its commit.", name, now["age_s"]))
        return found


def _only(call: Call, *methods: str) -> None:
    if call.method not in methods:
        raise RequestError(405, f"{call.path[:100]} takes {' and '.join(methods)}, not {call.method[:10]}")


def _page(path: str) -> Reply:
    name, kind = PAGE[path]
    content = files("paceline.predict").joinpath("page", name).read_bytes()
    return Reply(200, content, {"content-type": kind, **_PAGE_HEADERS})


def _version() -> str:
    return version("paceline")
