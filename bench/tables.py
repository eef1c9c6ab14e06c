"""Writes results as tables, for the terminal and for the parts of docs/performance.md between markers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def rows(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """The rows of the tables, by group: (name, median with its unit, min to max)."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for figure in document["figures"].values():
        what = figure["name"] if figure["x"] is None else f"{figure['x']:g} MB, {figure['name']}"
        median = f"{number(figure['median'])} {figure['unit']}"
        spread = f"{number(figure['min'])} to {number(figure['max'])}"
        groups.setdefault(figure["group"], []).append((what, median, spread))
    return groups


def number(value: float) -> str:
    """Three significant digits, with thousands separators."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def flat(ratios: Mapping[str, Any]) -> dict[str, float | None]:
    """The ratios in one flat mapping: a ratio that was measured for several sizes is called `ratio.size`."""
    found: dict[str, float | None] = {}
    for name, value in ratios.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{size}": inner for size, inner in value.items()}
        else:
            found[name] = value
    return found


def meets(value: float, target: str) -> bool:
    """Whether a ratio meets `target` ("≥ 1.2" or "≤ 0.35")."""
    sign, bound = target.split()
    return value >= float(bound) if sign == "≥" else value <= float(bound)


def ratio_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, ratio of medians, smallest and largest ratio of one round, target (and whether it is met)."""
    by_round = [flat(ratios) for ratios in document["ratios_by_round"]]
    for name, value in flat(document["ratios"]).items():
        seen = [found for ratios in by_round if (found := ratios.get(name)) is not None]
        spread = f"{number(min(seen))} to {number(max(seen))}" if seen else ""
        target = document["targets"].get(name, "")
        if target and value is not None:
            target += " met" if meets(value, target) else " **missed**"
        yield name, "not measured" if value is None else number(value), spread, target


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section(document: Mapping[str, Any]) -> str:
    """The generated part of a benchmark's section in docs/performance.md."""
    about = document["machine"]
    parts = [
        f"`{document['command']}`: {document['rounds']} interleaved rounds in {document['seconds'] / 60:.0f} minutes "
        f"on {about['cpu']}, {about['cores']} cores, {about['memory_gb']:.0f} GB, Linux {about['kernel']}, Python "
        f"{about['python']}, torch {about['torch']}; the host took {document['stolen_cpu']:.1%} of the processor time."
    ]
    for group, body in rows(document).items():
        parts.append(markdown_table([group, "median", "min to max"], body))
    parts.append(markdown_table(["ratio of medians", "value", "by round", "target"], list(ratio_rows(document))))
    parts.extend(document["notes"])
    for failure in document["failures"]:
        last = failure["error"].strip().splitlines()[-1]
        parts.append(f"**Failed**: {failure['contender']} in round {failure['round']}: {last}")
    return "\n\n".join(parts)


def leak_section(document: Mapping[str, Any]) -> str:
    """The generated part of docs/performance.md about leaks."""
    samples = document["samples"]
    parts = [f"**Failed**: {failure['error']}" for failure in document["failures"]]
    if samples and document["growth"]:
        body = [
            [
                key,
                number(samples[0][key]),
                number(samples[-1][key]),
                f"{by:+.2f}",
                "**grew**" if key in document["grew"] else "",
            ]
            for key, by in document["growth"].items()
        ]
        parts.append(
            f"{len(samples)} samples from step {samples[0]['step']:,} to {samples[-1]['step']:,}; resident memory may "
            f"grow by {document['tolerance_mb']:g} MB (the allocator needs some), files and shared memory may not "
            f"grow over the last {document['window']} samples."
        )
        parts.append(markdown_table(["", "first", "last", "growth", ""], body))
    return "\n\n".join(parts)


def insert(page: str, name: str, text: str) -> str:
    """The page with the text between the markers of `name` replaced.

    Raises:
        ValueError: the page has no such markers.
    """
    begin, end = f"<!-- begin {name}: written by make bench -->", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no place for {name}: the page needs the lines {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def show(document: Mapping[str, Any]) -> None:
    """Print the tables."""
    for group, body in rows(document).items():
        print(f"\n{group}: median (min to max)")
        for what, median, spread in body:
            print(f"  {what:36s} {median:>18s}  ({spread})")
    print("\nratios of medians (by round)")
    for name, value, spread, target in ratio_rows(document):
        print(f"  {name:32s} {value:>12s}  ({spread})  {target.replace('*', '')}")
    for failure in document["failures"]:
        print(f"\nFAILED {failure['contender']} in round {failure['round']}: {failure['error']}")


def finish(document: Mapping[str, Any], plot: Path | None) -> int:
    """Print the tables, draw the plot, and return the exit code: 1 if a contender failed."""
    show(document)
    if plot is not None and document["figures"]:
        from plots import draw

        draw(document, plot)
        print(f"\nplot: {plot}")
    return 1 if document["failures"] else 0
