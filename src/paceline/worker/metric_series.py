"""Which calls of `validate` and `evaluate` measure the same: they are one series, and share the names of their metrics.

Every worker runs the same script and so must find the same series, also after a restart. Nothing here depends on time
or on addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from paceline.data.source import DatasetSource, Source

Metric = Callable[..., Mapping[str, Any]]


def name_of(metric: Metric) -> str:
    """The name of the function, or of its class."""
    return str(getattr(metric, "__name__", type(metric).__name__))


@dataclass(slots=True)
class _Series:
    number: int
    metric: Metric
    data: Any
    fingerprint: str
    periodic: bool
    period: int


class MetricSeries:
    """The series so far. Only `find` changes it.

    The same function on the same data set is the same series. A script may also make both anew in each epoch; so a
    function of the same code on data of the same fingerprint (class and length of a data set) is the same series, too,
    unless that was already evaluated in this period: between two loops, a second such call is another series.
    """

    def __init__(self) -> None:
        self._series: list[_Series] = []

    def find(self, metric: Metric, source: Source, number: int, *, periodic: bool, period: int) -> int:
        """The number of the series of call `number`, which evaluates `metric` on `source` after `period` loops."""
        data = source.data if isinstance(source, DatasetSource) else source
        found = next((s for s in self._series if _same(s.metric, metric) and s.data is data), None)
        if found is None and not periodic:
            found = next((s for s in self._series if _is_like(s, metric, source, period)), None)
        if found is None:
            found = _Series(number, metric, data, source.fingerprint, periodic, period)
            self._series.append(found)
        if not found.periodic:
            found.metric, found.data, found.period = metric, data, period
        return found.number


def _is_like(series: _Series, metric: Metric, source: Source, period: int) -> bool:
    if series.periodic or series.period == period:
        return False
    return _what(series.metric) == _what(metric) and series.fingerprint == source.fingerprint


def _same(one: Metric, other: Metric) -> bool:
    if isinstance(one, MethodType) and isinstance(other, MethodType):  # a new object each time that it is read
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return one is other


def _what(metric: Metric) -> tuple[str, Any]:
    return name_of(metric), getattr(metric, "__code__", type(metric))
