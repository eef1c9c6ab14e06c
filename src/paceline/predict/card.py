"""The model card: a JSON file beside a model file, which says what the model is and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.core.predict.signature import Signature
from paceline.errors import UsageError
from paceline.messages.status import Number

FORMAT = 1
SUFFIX = ".card.json"


class ScriptSource(msgspec.Struct, frozen=True):
    """The script whose `job.servable` builds the model, with its arguments and its working directory.

    `sha256` is that of the script when the model was exported.
    """

    path: str
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    module: str = ""
    sha256: str = ""


class Lineage(msgspec.Struct, frozen=True):
    """Where the weights come from: which version of which run, after how many steps and samples, on which data.

    `data` has the length of the data of each loop of the script, in order; `seed` is that of the job.
    """

    run: str = ""
    incarnation: int = 0
    version: int = -1
    step: int = 0
    samples: float = 0.0
    seed: int = 0
    data: tuple[int, ...] = ()
    fingerprints: dict[str, str] = {}


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a model file is.

    `kind` is its format: safetensors, onnx or pt2. `sha256` is that of the file and `digest` that of the weights, as
    the summary of a run shows it. `example` has a value for each input of few elements, as nested lists of one row.
    """

    format: int = FORMAT
    name: str
    kind: str
    sha256: str
    digest: str
    signature: Signature
    example: dict[str, Any] = {}
    metrics: dict[str, Number] = {}
    lineage: Lineage = Lineage()
    script: ScriptSource | None = None
    paceline: str = ""
    torch: str = ""


def card_path(model: Path) -> Path:
    """The card of a model file."""
    return model.with_name(model.name + SUFFIX)


def encode_card(card: ModelCard) -> str:
    """The text of a card."""
    return msgspec.json.format(msgspec.json.encode(card), indent=1).decode() + "\n"


def read_card(model: Path) -> ModelCard:
    """The card of a model file.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    path = card_path(model)
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except FileNotFoundError:
        raise UsageError(
            f"{model} has no model card ({path.name} beside it): `paceline export` writes both; copy them together"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if card.format != FORMAT:
        raise UsageError(f"{path} has format {card.format}; this version of Paceline reads format {FORMAT}")
    return card
