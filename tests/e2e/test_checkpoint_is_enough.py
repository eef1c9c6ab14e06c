"""A run whose machine is lost goes on elsewhere from its checkpoints alone; the old run, revived, ends as deposed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.kit.checked_runs import summary_of
from tests.kit.hurry import HURRY
from tests.kit.real_runs import PACELINE, TRAIN_CASE, live, run
from tests.kit.real_runs import SLOW as SLEEP

from paceline.runtime.exit_codes import EXIT_DEPOSED

STARTED = ["-w", "2", "-s", "2", "--seed", "7", "--checkpoint-every", "2"]


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_on_elsewhere_and_the_old_one_ends_as_deposed(tmp_path: Path) -> None:
    here, there, place = tmp_path / "here", tmp_path / "there", tmp_path / "ckpt"
    here.mkdir()
    there.mkdir()
    options = [*STARTED, "--checkpoints", str(place)]
    with live(here, options, TRAIN_CASE, "norm", "--sleep", SLEEP) as running:
        running.until(lambda status: len(list(place.glob("*/COMPLETE"))) >= 2)
        roles = running.roles()
        stopped = [running.process, *roles.values()]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        running.close()
        token = (here / "run" / "token").read_bytes()
        (here / "run").rename(tmp_path / "lost")  # its machine is gone, with its disk

        (there / HURRY).touch()
        ended = run([*PACELINE, "run", "--resume", place, "--dir", "run"], there)
        summary = summary_of(ended, there)
        assert (summary["steps"], summary["incarnation"]) == (12, 1)
        plan = json.loads((there / "run" / "run.json").read_text())
        assert plan["script"] == str(there / "run" / "code" / TRAIN_CASE.name), "it ran the code of the checkpoint"
        run([*PACELINE, "audit", "run"], there).check()
        made = content_of(place)
        assert not [name for name, content in made.items() if token in content]

        (tmp_path / "lost").rename(here / "run")
        for process in reversed(stopped):
            process.send_signal(signal.SIGCONT)
        old = running.wait(60.0)
    assert old.code == EXIT_DEPOSED, old.out
    assert "this run is deposed: another run has taken over the checkpoints" in old.out
    now = content_of(place)
    assert {name: now.get(name) for name in made} == made, "the old run has changed and removed nothing"
    assert not [name for name in set(now) - set(made) if name.endswith("COMPLETE")]
    again = run([*PACELINE, "run", "--resume", "run"], here, timeout_s=30).check(EXIT_DEPOSED)
    assert "this run is deposed" in again.out
