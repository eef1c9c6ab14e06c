"""The page of a predictor in a real browser: Debian's chromium, by Playwright."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.kit.serving import served

SCRIPT = """
import torch
import paceline

class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))

    def forward(self, x):
        return x @ self.weight

job = paceline.join()
job.servable(Scores, torch.ones(1, 4))
"""

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.real_run,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (apt-get install chromium)"),
]


def _model(folder: Path) -> Path:
    """A model file with its card, of a script that trains nothing."""
    from paceline.predict.card import ModelCard, ScriptSource, card_path, encode_card
    from paceline.runtime.model_files import build_servable, example_of, servable_of
    from paceline.worker.save_model import save_model

    script = folder / "scores.py"
    script.write_text(SCRIPT)
    source = ScriptSource(str(script), cwd=str(folder))
    built = build_servable(servable_of(source))
    file = folder / "scores.safetensors"
    card = ModelCard(
        name="scores",
        kind="safetensors",
        sha256=save_model(built.model, file),
        digest="",
        signature=built.signature,
        example=example_of(built),
        script=source,
    )
    card_path(file).write_text(encode_card(card))
    return file


def test_a_person_sees_the_signature_and_tries_an_input(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with served(tmp_path, _model(tmp_path)) as server, playwright.sync_playwright() as started:
        server.until_ready()
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 900, "height": 900})
            problems: list[str] = []
            asked: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"http://{server.address}/")
            page.wait_for_selector("#signature tr")
            assert page.inner_text("#signature tr:first-child").split("\t")[1:] == ["x", "FP32", "[any, 4]"]
            assert page.inner_text("#signature tr:last-child").split("\t")[1:] == ["output", "FP32", "[any, 3]"]
            page.click("button")
            page.wait_for_selector("#answer .row.best")
            assert page.inner_text("#answer .row.best").split() == ["2", "26.000"]
            page.screenshot(path=str(tmp_path / "page.png"))
            page.fill("textarea", "[1, 2]")
            page.click("button")
            page.wait_for_selector("#state.error")
            assert "shape" in page.inner_text("#state") or "data" in page.inner_text("#state")
            assert [p for p in problems if "400" not in p] == []
            assert {url.startswith(f"http://{server.address}/") for url in asked if not url.startswith("data:")} == {
                True
            }
        finally:
            browser.close()
        server.end()
