"""The models that a predictor serves: by name, each with one version or several, of which one is current."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.core.predict.signature import Signature
from paceline.errors import RequestError
from paceline.predict.arrays import NUMPY, Arrays

if TYPE_CHECKING:
    from paceline.predict.runners import Runner

_LOADING = "the model is not loaded yet"


class Loaded:
    """One version of a model, ready to compute. `label` is its name in paths.

    `incarnation` and `version` say which state of a run it has (-1: not known), and `committed_at` when that was
    committed, by `time.time()`.
    """

    def __init__(
        self,
        runner: Runner,
        label: str,
        *,
        incarnation: int = 0,
        version: int = -1,
        committed_at: float | None = None,
        seen: Callable[[], float] | None = None,
    ) -> None:
        """`seen` returns when it was last known that no newer version is there; None for a model of a file."""
        self.runner = runner
        self.label = label
        self.incarnation = incarnation
        self.version = version
        self.committed_at = committed_at
        self._lock = threading.Lock()
        self._retired = False
        self._seen = seen

    def parameters(self) -> dict[str, Any]:
        """What every response says of the version of a run that made it. `age_s` is how long ago it was committed."""
        found: dict[str, Any] = {}
        if self.version >= 0:
            found |= {"version": self.version, "incarnation": self.incarnation}
        if self.committed_at is not None:
            found["age_s"] = round(max(0.0, time.time() - self.committed_at), 3)
        if self._seen is not None:
            found["checked_s"] = round(max(0.0, time.time() - self._seen()), 3)
        return found

    def compute(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]] | None:
        """The outputs for `inputs`, all by this version; None if it is retired: another version answers now."""
        with self._lock:
            return None if self._retired else self.runner.run(inputs)

    def retire(self) -> None:
        """Let this version compute no more; returns when it computes nothing. Its memory may then be written."""
        with self._lock:
            self._retired = True


class Model:
    """A model by its name. Its versions may be added and replaced while requests come.

    The first request of a batch decides nothing: the current version is taken when the batch is computed, so that all
    of its answers are of one version.
    """

    def __init__(self, name: str, *, example: Mapping[str, Any] | None = None, about: Mapping[str, Any] | None = None):
        self.name = name
        self.example = dict(example or {})
        self.about = dict(about or {})
        self._versions: dict[str, Loaded] = {}
        self._current: Loaded | None = None
        self._signature: Signature | None = None

    @property
    def is_ready(self) -> bool:
        """Whether some version can compute."""
        return self._current is not None

    @property
    def current(self) -> Loaded:
        """The version that answers requests which name none.

        Raises:
            RequestError: status 503: there is none yet.
        """
        if self._current is None:
            raise RequestError(503, f"{self.name}: {_LOADING}", retry_after_s=1.0)
        return self._current

    @property
    def signature(self) -> Signature:
        """The signature, which all versions share.

        Raises:
            RequestError: status 503: it is not known before the first version is there.
        """
        return self.current.runner.signature if self._signature is None else self._signature

    def describe(self, signature: Signature) -> None:
        """Say the signature before the first version is there."""
        self._signature = signature

    @property
    def versions(self) -> Sequence[str]:
        """The labels of the versions that can be asked for, the newest last."""
        return list(self._versions)

    def add(self, loaded: Loaded) -> None:
        """Add a version, which becomes the current one."""
        self._versions[loaded.label] = loaded
        self._current = loaded

    def replace(self, loaded: Loaded) -> None:
        """Make `loaded` the only version: batches that begin from now on are computed with it."""
        self._current = loaded
        self._versions = {loaded.label: loaded}

    def version(self, label: str) -> Loaded:
        """The version called `label`; "" is the current one.

        Raises:
            RequestError: status 404: there is no such version.
        """
        if not label:
            return self.current
        found = self._versions.get(label)
        if found is None:
            raise RequestError(
                404, f"{self.name} has no version {label[:40]!r}; it has {', '.join(self._versions) or 'none'}"
            )
        return found


class Models:
    """The models of one predictor, by name."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Any:
        """The models, in the order in which they were named."""
        return iter(self._models.values())

    @property
    def is_ready(self) -> bool:
        """Whether every model can answer."""
        return all(model.is_ready for model in self._models.values())

    def named(self, name: str) -> Model:
        """The model called `name`.

        Raises:
            RequestError: status 404: there is none.
        """
        model = self._models.get(name)
        if model is None:
            raise RequestError(404, f"there is no model {name[:80]!r}; this server has: {', '.join(self._models)}")
        return model


def warm_up(loaded: Loaded, max_rows: int) -> None:
    """Compute a batch of one row and a full one, so that the first requests are as quick as the later ones."""
    signature = loaded.runner.signature
    for rows in {1, max_rows} if signature.batched else {1}:
        loaded.compute(
            {
                spec.name: np.zeros([rows if dim < 0 else dim for dim in spec.shape], NUMPY[spec.datatype])
                for spec in signature.inputs
            }
        )
