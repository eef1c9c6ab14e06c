"""What a user says is good, and when a job has done enough: how it is written, and the settings that follow."""

from __future__ import annotations

import re
from math import isnan
from typing import NamedTuple

import msgspec

from paceline.errors import UsageError

STOP = "stop"
ON_NAN = ("warn", STOP)
"""What a job may do about numbers that are not finite."""

_TARGET = re.compile(r"(?P<metric>[^<>=:]+?)\s*(?P<op>>=|<=|>|<|:)\s*(?P<value>\S+)")
_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_SMALLER = ("loss", "error")


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Policies that the command, or one call of the script, asks for. A field with its default asks for none.

    `source` is how messages name them: "" for options of the command. `metric` is that of `patience` and `plateau`, ""
    for the only one that there is; a `larger` value is better, None: as its name says. After `plateau` validations
    without a better value, the learning rate is multiplied by `factor`. `best`, which `parse_best` reads, says by which
    metric checkpoints of the `keep_best` best versions are kept.
    """

    source: str = ""
    max_epochs: int = 0
    max_samples: int = 0
    max_time_s: float = 0.0
    target: str = ""
    patience: int = 0
    plateau: int = 0
    factor: float = 0.5
    min_delta: float = 0.0
    metric: str = ""
    larger: bool | None = None
    on_nan: str = "warn"
    best: str = ""
    keep_best: int = 1

    def check(self) -> PolicySpec:
        """Return these settings.

        Raises:
            UsageError: one of them cannot be; the message names the option, or the call of the script.
        """
        for name in ("max_epochs", "max_samples", "max_time_s", "patience", "plateau", "min_delta"):
            if not (value := getattr(self, name)) >= 0:
                name = name.removesuffix("_s")
                shown = f"{self.source}: {name}" if self.source else "--" + name.replace("_", "-")
                raise UsageError(f"{shown} must be 0 or more, not {value:g}")
        if not 0 < self.factor < 1:
            raise UsageError(f"{self.source}: factor must be between 0 and 1, not {self.factor:g}")
        if self.on_nan not in ON_NAN:
            raise UsageError(f"--on-nan must be {' or '.join(ON_NAN)}, not {self.on_nan!r}")
        if self.best:
            parse_best(self.best)
        if self.keep_best < 1:
            raise UsageError(f"--keep-best must be at least 1, not {self.keep_best}")
        if self.target:
            parse_target(self.target, self.source or "--target")
        return self


NO_POLICIES = PolicySpec()


class Target(NamedTuple):
    """A metric shall be at least `value`, or at most with `larger` False; beyond it, not equal, if `strict`."""

    metric: str
    value: float
    larger: bool
    strict: bool = False

    def is_reached(self, value: float) -> bool:
        """Whether `value` is good enough. A NaN never is."""
        if self.strict:
            return value > self.value if self.larger else value < self.value
        return value >= self.value if self.larger else value <= self.value


def parse_target(text: str, name: str = "--target") -> Target:
    """Read ``accuracy>=0.9``, ``loss<0.1``, or ``accuracy:0.9``: at least 0.9, or at most for a loss or an error.

    Raises:
        UsageError: anything else; the message calls it `name`.
    """
    found = _TARGET.fullmatch(text.strip())
    try:
        value = float("nan") if found is None else float(found["value"])
    except ValueError:
        value = float("nan")
    if found is None or isnan(value):
        raise UsageError(
            f"{name} must be a metric and the number that it shall reach, such as 'accuracy>=0.9' or loss:0.1, not "
            f"{text!r}"
        )
    metric, op = found["metric"], found["op"]
    larger = larger_is_better(metric) if op == ":" else op.startswith(">")
    return Target(metric, value, larger, op in ("<", ">"))


def parse_best(text: str, name: str = "--best") -> tuple[str, bool]:
    """Read ``accuracy:max``, ``loss:min``, or only the metric; returns it, and whether a larger value is better.

    Raises:
        UsageError: anything else; the message calls it `name`.
    """
    metric, colon, kind = text.strip().partition(":")
    if not metric or (colon and kind not in ("max", "min")):
        raise UsageError(f"{name} must be a metric with max or min, such as accuracy:max or loss:min, not {text!r}")
    return metric, kind == "max" if kind else larger_is_better(metric)


def larger_is_better(metric: str) -> bool:
    """Whether a larger value of `metric` is better: not if its name has the word loss or error."""
    return not set(re.split(r"[^a-z]+", metric.lower())).intersection(_SMALLER)


def parse_time(text: str, name: str = "--max-time") -> float:
    """Read ``2h``, ``1h30m``, ``45s`` or ``90`` (seconds); returns seconds.

    Raises:
        UsageError: anything else; the message calls it `name`.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise UsageError(f"{name} must be a time such as 2h, 1h30m or 45s, not {text!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = 86_400 * days + 3600 * hours + 60 * minutes + seconds
    if not total > 0:
        raise UsageError(f"{name} must be longer than 0 s, not {text!r}")
    return total


def parse_plateau(text: str, name: str = "--plateau") -> tuple[int, float]:
    """Read ``3`` (validations) or ``3:0.1`` (and the factor of the learning rate, by default 0.5).

    Raises:
        UsageError: anything else; the message calls it `name`.
    """
    number, colon, factor = text.partition(":")
    try:
        found = int(number), float(factor) if colon else 0.5
    except ValueError:
        found = 0, 0.5
    if found[0] < 1 or not 0 < found[1] < 1:
        raise UsageError(
            f"{name} must be a number of validations, with a factor below 1 if you want another than 0.5, such as 3 or "
            f"3:0.1, not {text!r}"
        )
    return found


def time_in_words(seconds: float) -> str:
    """A time as `parse_time` reads it, such as ``1h30m``."""
    whole = int(seconds)
    parts = [(whole // 3600, "h"), (whole % 3600 // 60, "m")]
    rest = seconds - whole + whole % 60
    text = "".join(f"{number}{unit}" for number, unit in parts if number)
    return text + f"{rest:g}s" * bool(rest or not text)
