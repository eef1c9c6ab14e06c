"""The metrics of a predictor, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A number for each combination of labels, which only grows."""

    kind = "counter"

    def __init__(self, name: str, about: str, labels: Sequence[str]) -> None:
        self.name, self.about, self.labels = name, about, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Add to the number of these labels."""
        self._values[labels] = self._values.get(labels, 0.0) + by

    def lines(self) -> Iterable[str]:
        """The samples."""
        for labels, value in self._values.items():
            yield f"{self.name}{_labels(self.labels, labels)} {value:g}"


class Histogram:
    """How many values were at most each of some bounds, for each combination of labels."""

    kind = "histogram"

    def __init__(self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name, self.about, self.labels, self._bounds = name, about, tuple(labels), tuple(bounds)
        self._values: dict[tuple[str, ...], list[float]] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count one value."""
        counts = self._values.setdefault(labels, [0.0] * (len(self._bounds) + 2))
        counts[bisect_left(self._bounds, value)] += 1
        counts[-1] += value

    def lines(self) -> Iterable[str]:
        """The samples: cumulative counts, the sum and the count."""
        for labels, (*counts, total) in self._values.items():
            seen = 0.0
            for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
                seen += count
                yield f"{self.name}_bucket{_labels((*self.labels, 'le'), (*labels, f'{bound}'))} {seen:g}"
            yield f"{self.name}_sum{_labels(self.labels, labels)} {total:g}"
            yield f"{self.name}_count{_labels(self.labels, labels)} {seen:g}"


class Metrics:
    """What a predictor counts. Several threads may observe: a lost count is possible and does no harm."""

    def __init__(self) -> None:
        self.requests = Counter("paceline_requests_total", "Requests by model and status.", ("model", "status"))
        self.refused = Counter(
            "paceline_refused_total", "Requests that were refused before their body was read.", ("status",)
        )
        self.seconds = Histogram(
            "paceline_request_seconds", "From the last byte of a request to its answer.", ("model",), SECONDS
        )
        self.batch_rows = Histogram("paceline_batch_rows", "Rows in a batch.", ("model",), ROWS)
        self.batch_seconds = Histogram("paceline_batch_seconds", "Time that a batch took.", ("model",), SECONDS)

    def text(self, gauges: Sequence[tuple[str, str, str, float]]) -> str:
        """All metrics, with `gauges` as (name, what it is, model, value)."""
        lines: list[str] = []
        for metric in (self.requests, self.refused, self.seconds, self.batch_rows, self.batch_seconds):
            lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        named: set[str] = set()
        for name, about, model, value in sorted(gauges):
            if name not in named:
                named.add(name)
                lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
            lines.append(f"{name}{_labels(('model',), (model,))} {value:g}")
        return "\n".join(lines) + "\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in values)
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)) + "}"


def with_label(label: str, texts: Mapping[str, str], own: Sequence[Counter]) -> str:
    """Join the metrics of several processes: each sample gets `label` with the name of its process."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for name, content in texts.items():
        family = ""
        for line in content.splitlines():
            if line.startswith("#"):
                family = line.split()[2]
                if line not in heads.setdefault(family, []):
                    heads[family].append(line)
            else:
                start, _, value = line.rpartition(" ")
                inner = start[start.index("{") + 1 : -1] + "," if start.endswith("}") else ""
                samples.setdefault(family, []).append(f'{start.partition("{")[0]}{{{inner}{label}="{name}"}} {value}')
    for counter in own:
        heads[counter.name] = [f"# HELP {counter.name} {counter.about}", f"# TYPE {counter.name} {counter.kind}"]
        samples.setdefault(counter.name, []).extend(counter.lines())
    return "\n".join(line for family in heads for line in (*heads[family], *samples.get(family, ()))) + "\n"
