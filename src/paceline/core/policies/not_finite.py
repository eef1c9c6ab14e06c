"""End the job when a number is not finite: a logged value, a gradient, or a metric of validation."""

from __future__ import annotations

from math import isfinite

from paceline.core.policies.base import PolicyEvent, StepDone, StopBefore, ValidationDone

_SHOWN = 16  # samples of a slot that a reason names


def samples_in_words(samples: tuple[int, ...]) -> str:
    """The samples of a slot, the first of them by number."""
    if not samples:
        return "samples that were drawn by weight"
    text = ", ".join(map(str, samples[:_SHOWN])) + ", …" * (len(samples) > _SHOWN)
    return f"sample{'s' * (len(samples) != 1)} {text}"


class StopOnNan:
    """Stops the job after the first step, or validation, with a number that is not finite (`--on-nan stop`)."""

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """Stop the job, and name the samples of the slots in which a number is not finite."""
        match event:
            case StepDone(bad=bad) if bad:
                found = [f"{name} is {value}" for name, value in event.values.items() if not isfinite(value)]
                slots = "; ".join(f"slot {slot.slot}: {samples_in_words(slot.samples)}" for slot in bad)
                what = found[0] if found else "a gradient is not finite"
                return StopBefore(f"--on-nan stop: {what} at step {event.step} ({slots})")
            case ValidationDone(metrics=metrics):
                for name, value in metrics.items():
                    if not isfinite(value):
                        return StopBefore(f"--on-nan stop: {name} is {value} at version {event.version}", event.step)
        return None
