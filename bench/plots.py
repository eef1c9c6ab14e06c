"""Draws results as PNG: bars with the spread of the rounds, or lines over a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ["#2563eb", "#f59e0b", "#64748b", "#dc2626", "#059669", "#7c3aed", "#db2777"]


def require() -> None:
    """Check that matplotlib is installed, before an hour of measuring.

    Raises:
        SystemExit: matplotlib is not installed; the message has the command that installs it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SystemExit(
            "matplotlib draws the plots and is not installed: python -m pip install -c constraints.txt -e '.[bench]'"
        ) from None


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw one panel per group of figures. A group of one figure is left out if there are other groups."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for figure in document["figures"].values():
        groups.setdefault(figure["group"], []).append(figure)
    shown = {title: figures for title, figures in groups.items() if len(figures) > 1 or len(groups) == 1}
    axes, save = _panels(len(shown), path)
    for axis, (title, figures) in zip(axes, shown.items(), strict=True):
        axis.set_title(title)
        if figures[0]["x"] is None:
            _bars(axis, figures)
        else:
            _lines(axis, figures)
    save()


def draw_lines(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], xlabel: str, path: Path) -> None:
    """Draw one panel per title and one line per name. Every panel begins at zero."""
    axes, save = _panels(len(panels), path)
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.set_title(title)
        for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
            axis.plot(*zip(*points, strict=True), label=name, color=colour)
        axis.set_xlabel(xlabel)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    save()


def _panels(count: int, path: Path) -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=(5.2 * count, 3.8), squeeze=False)

    def save() -> None:
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)

    return list(axes[0]), save


def _bars(axis: Any, figures: Sequence[Mapping[str, Any]]) -> None:
    for place, figure in enumerate(figures):
        spread = [[figure["median"] - figure["min"]], [figure["max"] - figure["median"]]]
        axis.barh(place, figure["median"], xerr=spread, color=COLOURS[place % len(COLOURS)], capsize=3, height=0.65)
    axis.set_yticks(range(len(figures)), [figure["name"] for figure in figures])
    axis.invert_yaxis()
    axis.set_xlabel(f"{figures[0]['unit']}, median and spread")


def _lines(axis: Any, figures: Sequence[Mapping[str, Any]]) -> None:
    series: dict[str, list[Mapping[str, Any]]] = {}
    for figure in figures:
        series.setdefault(figure["name"], []).append(figure)
    for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
        points = sorted(points, key=lambda point: float(point["x"]))
        low = [point["median"] - point["min"] for point in points]
        high = [point["max"] - point["median"] for point in points]
        xs, medians = [point["x"] for point in points], [point["median"] for point in points]
        axis.errorbar(xs, medians, yerr=[low, high], label=name, color=colour, marker="o", capsize=3)
    axis.set(xscale="log", yscale="log", xlabel="MB of parameters", ylabel=figures[0]["unit"])
    xs = sorted({float(figure["x"]) for figure in figures})
    axis.set_xticks(xs, [f"{x:g}" for x in xs])
    axis.minorticks_off()
    axis.legend(fontsize="small")
