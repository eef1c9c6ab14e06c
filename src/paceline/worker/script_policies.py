"""The policies that a script asks for: those that the coordinator decides, and functions of the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.config.policies import PolicySpec, parse_best
from paceline.errors import UsageError
from paceline.messages import DeclarePolicy, Ok, Stop
from paceline.types import Measured
from paceline.worker.metrics import Metrics
from paceline.worker.session import Session

Condition = Callable[[Metrics], object]
"""A function of the metrics; a true result stops the job, and a text is the reason."""


class ScriptPolicies:
    """Declares policies to the coordinator, and asks functions of the script when a result of validation is new."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._declared = 0
        self._conditions: list[Condition] = []
        self._seen = -1

    def declare(self, policy: PolicySpec) -> None:
        """Ask for a policy. Every worker makes the same calls in the same order.

        Raises:
            UsageError: an argument cannot be; the message names the call.
        """
        policy.check()
        number = self._declared
        self._session.ask(lambda req: DeclarePolicy(req, number, policy), Ok)
        self._declared += 1

    def stop_when(self, condition: str | Condition | None, *, patience: int, metric: str, min_delta: float) -> None:
        """Stop by a target (a text), by a function of the metrics, or by `patience`.

        Raises:
            UsageError: none of them is given, or more than one; or an argument cannot be.
        """
        if (condition is None) == (patience == 0):
            raise UsageError(
                "job.stop_when takes a target such as 'accuracy>=0.9', a function of the metrics, or patience=N: give "
                "one of them"
            )
        if callable(condition):
            self._conditions.append(condition)
            return
        call = f"job.stop_when(patience={patience})" if condition is None else f"job.stop_when({condition!r})"
        target, (name, larger) = condition or "", _metric(metric, call)
        self.declare(
            PolicySpec(source=call, target=target, patience=patience, min_delta=min_delta, metric=name, larger=larger)
        )

    def on_plateau(self, patience: int, metric: str, *, factor: float, min_delta: float) -> None:
        """Lower the learning rate when `metric` does not become better.

        Raises:
            UsageError: an argument cannot be.
        """
        call = f"job.on_plateau({metric!r})" if metric else "job.on_plateau()"
        if patience < 1:
            raise UsageError(f"{call}: patience must be at least 1, not {patience}")
        name, larger = _metric(metric, call)
        self.declare(
            PolicySpec(source=call, plateau=patience, factor=factor, metric=name, larger=larger, min_delta=min_delta)
        )

    def see(self, measured: Mapping[str, Measured], step: int, *, passed: bool) -> None:
        """Ask the functions of the script in a turn of `step`, if a result is new to this worker.

        In lock-step every worker sees the same results in the turns of a step: the job stops after the same step.
        """
        if not self._conditions or not measured:
            return
        metrics = Metrics(measured)
        if metrics.step <= self._seen:
            return
        self._seen = metrics.step
        for condition in self._conditions:
            if not (found := condition(metrics)):
                continue
            name = getattr(condition, "__name__", "a function")
            reason = found if isinstance(found, str) else f"job.stop_when({name})"
            self._session.ask(lambda req, why=reason: Stop(req, why, step, passed=passed), Ok)  # type: ignore[misc]
            return

    def turn_ended(self, step: int) -> None:
        """Do nothing: the functions are asked before a turn."""


def _metric(metric: str, call: str) -> tuple[str, bool | None]:
    """The metric that a call names, and whether a larger value is better; None: as the name says."""
    return parse_best(metric, f"{call}: metric") if metric else ("", None)
