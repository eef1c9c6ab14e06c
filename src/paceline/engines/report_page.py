"""One HTML page about a run, or several side by side. It needs no network: pictures are SVG in the page itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from html import escape
from math import isfinite
from pathlib import Path
from time import gmtime, strftime

from paceline.coordinator.json_numbers import shown
from paceline.engines.run_figures import Curve, Figures, figures_of
from paceline.errors import PacelineError
from paceline.messages.status import RunSummary
from paceline.runtime.rundir import RunDir, finish_run, replace_file

logger = logging.getLogger(__name__)

REPORT = "report.html"

_COLOURS = ("#1f6f8b", "#c8553d", "#5b8c5a", "#8e5572", "#b08900", "#4c5c96", "#7a7a7a", "#d1495b")
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.15rem .6rem .15rem 0;vertical-align:top}
td:first-child,th:first-child{white-space:nowrap;color:#666}figure{display:inline-block;margin:.5rem 1rem .5rem 0}
figcaption{font-size:.85rem;color:#444}.bar{background:#1f6f8b;height:.7rem;display:inline-block}
"""
_W, _H, _LEFT, _BOTTOM = 440, 220, 56, 24


def report_page(figures: Figures) -> str:
    """The report of one run: how it ended, its curves, who computed, what went wrong, and its method."""
    summary = figures.summary
    parts = [_table("How it ended", _ending(figures))]
    parts += _pictures([figures])
    if figures.shares:
        bars = [
            (name, f'<i class="bar" style="width:{300 * share:.0f}px"></i> {share:.0%}')
            for name, share in sorted(figures.shares.items())
        ]
        parts.append(_table("Who computed", bars, raw=True))
    losses = [(_clock(r.at), r.text) for r in figures.lost]
    cost = [] if summary is None else [("cost", _cost(figures))]
    parts.append(_table("Faults, and what they cost", [*losses, *cost] or [("none", "")]))
    plan = {k: v for k, v in figures.plan.items() if v not in (None, "", [], {}, False) and k not in _HIDDEN}
    parts.append(_table("Method", [(key, str(value)) for key, value in sorted(plan.items())]))
    parts.append(_table("Events", [(_clock(r.at), f"{r.kind}: {r.text}") for r in figures.records]))
    return _page(f"Paceline run {figures.name}", parts)


_HIDDEN = ("fingerprint", "env", "term_key", "hosts", "files")


def comparison_page(runs: Sequence[Figures]) -> str:
    """Runs side by side: one table, and pictures with a curve of each run."""
    rows = comparison_rows(runs)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return _page("Paceline runs", [f"<table><tr>{head}</tr>{body}</table>", *_pictures(runs)])


_COMPARED = ("stop_reason", "steps", "samples", "seconds", "samples_per_s", "mode", "slots", "workers", "servers")


def comparison_rows(runs: Sequence[Figures]) -> list[list[str]]:
    """A table of runs as cells: a column for each run, a row for each number that one of them has."""
    rows = [["", *(run.name for run in runs)]]
    summaries = [run.summary for run in runs]
    for name in (*_COMPARED, "lost_workers", "failovers", "rewinds", "wasted_slots"):
        rows += [_row(name, [None if s is None else shown(getattr(s, name)) for s in summaries])]
    for name in sorted({name for s in summaries if s is not None for name in s.metrics}):
        rows += [_row(name, [None if s is None else shown(s.metrics.get(name, "")) for s in summaries])]
    rows.append(_row("best", [_best(s) for s in summaries]))
    rows.append(_row("digest", [None if s is None or s.digest is None else s.digest[:16] for s in summaries]))
    return [row for row in rows if any(row[1:])]


def _row(name: str, cells: Sequence[str | None]) -> list[str]:
    return [name, *(cell or "" for cell in cells)]


def _best(summary: RunSummary | None) -> str | None:
    if summary is None or summary.best is None:
        return None
    return f"{summary.best.metric} {shown(summary.best.value)} (version {summary.best.version})"


def _ending(figures: Figures) -> list[tuple[str, str]]:
    summary = figures.summary
    if summary is None:
        return [("state", "not done")]
    rows = [("state", summary.state), ("reason", summary.stop_reason or ""), ("digest", summary.digest or "")]
    rows += [(name, shown(getattr(summary, name))) for name in _COMPARED[1:]]
    rows += [(name, shown(value)) for name, value in summary.metrics.items()]
    if summary.best is not None:
        rows.append(("best", _best(summary) or ""))
    rows += [("warning", text) for text in summary.warnings]
    return [row for row in rows if row[1]]


def _cost(figures: Figures) -> str:
    summary = figures.summary
    assert summary is not None
    return (
        f"{summary.recomputed_steps} steps computed again after {summary.rewinds} rewinds; {summary.failovers} "
        f"failovers (at most {summary.failover_s:.1f} s without a commit); {summary.wasted_slots} slots computed "
        f"twice; {summary.lost_workers} workers lost"
    )


def _clock(at: float) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", gmtime(at))


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def _table(title: str, rows: Sequence[tuple[str, str]], *, raw: bool = False) -> str:
    body = "".join(f"<tr><td>{escape(k)}</td><td>{v if raw else escape(v)}</td></tr>" for k, v in rows)
    return f"<h2>{escape(title)}</h2><table>{body}</table>"


# ------------------------------------------------------------------ pictures


def _pictures(runs: Sequence[Figures]) -> list[str]:
    out = ["<h2>Curves</h2>"]
    for kind in ("measured", "logged"):
        for name in sorted({name for run in runs for name in getattr(run, kind)}):
            curves = [(run.name, getattr(run, kind).get(name, [])) for run in runs]
            out.append(picture(f"{name} by {'version' if kind == 'measured' else 'step'}", curves))
    out.append(picture("samples per second, by seconds", [(run.name, run.rate) for run in runs]))
    return out


def picture(title: str, curves: Sequence[tuple[str, Curve]]) -> str:
    """One picture, as SVG, with a line for each curve. Numbers that are not finite are left out."""
    good = [(name, [(x, y) for x, y in curve if isfinite(y)]) for name, curve in curves]
    points = [point for _, curve in good for point in curve]
    if not points:
        return ""
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = min(y for _, y in points), max(y for _, y in points)

    def at(x: float, y: float) -> str:
        right = (x - low_x) / (high_x - low_x or 1.0) * (_W - _LEFT - 8)
        up = (y - low_y) / (high_y - low_y or 1.0) * (_H - _BOTTOM - 12)
        return f"{_LEFT + right:.1f},{_H - _BOTTOM - up:.1f}"

    lines, names = [], []
    for number, (name, curve) in enumerate(good):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(at(x, y) for x, y in curve)
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}"/>')
        names.append(f'<i style="color:{colour}">{escape(name)}</i>')
    text = 'font-size="11" fill="#666"'
    axes = (
        f'<path d="M{_LEFT} 8V{_H - _BOTTOM}H{_W}" stroke="#bbb" fill="none"/>'
        f'<text x="{_LEFT - 4}" y="16" text-anchor="end" {text}>{high_y:.4g}</text>'
        f'<text x="{_LEFT - 4}" y="{_H - _BOTTOM}" text-anchor="end" {text}>{low_y:.4g}</text>'
        f'<text x="{_LEFT}" y="{_H - 6}" {text}>{low_x:.6g}</text>'
        f'<text x="{_W - 4}" y="{_H - 6}" text-anchor="end" {text}>{high_x:.6g}</text>'
    )
    legend = " · ".join(names) if len(names) > 1 else ""
    return (
        f"<figure><figcaption>{escape(title)} {legend}</figcaption>"
        f'<svg width="{_W}" height="{_H}" role="img" aria-label="{escape(title)}">{axes}{"".join(lines)}</svg></figure>'
    )


def finish_and_report(run: RunDir, summary: str, also: Path | None) -> None:
    """Write the summary of a run that is done, a copy of it to `also`, and report.html.

    If the report cannot be written, the log says why: the run is done.
    """
    finish_run(run, summary)
    if also is not None:
        also.parent.mkdir(parents=True, exist_ok=True)
        also.write_text(summary)
    try:
        replace_file(run.path / REPORT, report_page(figures_of(run)))
    except (PacelineError, OSError):
        logger.warning("cannot write %s of %s", REPORT, run.path, exc_info=True)
