"""Decisions: asks the policies what follows from commits and validations, and carries it out. Rule 8.

In lock-step a decision does not depend on timing: a result on version v is decided on before a step from v + `every` on
is leased, in the order of versions, and takes effect there; a result at the end of a loop takes effect at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    JobFailed,
    Output,
    RoundEnded,
    StepCommitted,
    VersionsKept,
    WarningFound,
)
from paceline.core.coordinator.live_dials import LiveDials
from paceline.core.coordinator.metric_names import names, series_of
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.tables.results import Decided
from paceline.core.effects import History, PolicyFact, Send
from paceline.core.policies.base import (
    BadSlot,
    Elapsed,
    FailJob,
    Policy,
    PolicyEvent,
    ScaleRate,
    StepDone,
    ValidationDone,
    WarnUser,
)
from paceline.core.policies.lowest_stop import ask
from paceline.core.policies.registry import policies_of
from paceline.core.sampling import epochs_before
from paceline.errors import MismatchError, UsageError
from paceline.messages import DeclarePolicy, Ok, Position, ValidatorSpec
from paceline.types import INIT_STEP, NodeId, SlotId


class Decisions:
    """Asks the policies of the command and of the script. The job has run for `earlier_s` before this coordinator."""

    def __init__(
        self, tables: Tables, segments: Segments, dials: LiveDials, policies: Sequence[Policy], earlier_s: float
    ) -> None:
        self._clock = tables.clock
        self._identity = tables.identity
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._results = tables.results
        self._rounds = tables.rounds
        self._incarnation = tables.incarnation
        self._segments = segments
        self._dials = dials
        self._policies = tuple(policies)
        self._declared: list[DeclarePolicy] = []
        self._earlier_s = earlier_s
        self._began: float | None = None

    # ------------------------------------------------------------ restart and rewind

    def restore(self, history: History) -> list[Output]:
        """Take over the policies of the script, and the results on which earlier coordinators have decided."""
        for row in history.facts:
            if isinstance(row.fact, PolicyFact):
                self._add(row.fact.policy)
        self._began = self._clock.now if self._log.version >= 0 else None
        position = self._incarnation.position
        found = [] if position is None else [self._result(n, v, dict(values)) for n, v, values in position.results]
        found += [self._result(row.validator, row.version, row.values) for row in history.evaluations]
        self._results.recall([result for result in found if result is not None])
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Forget the results on versions that the job computes again. Policies stay."""
        self._results.reset(-1 if position is None else position.version)
        return []

    def versions_kept(self, event: VersionsKept) -> list[Output]:
        """Decide again on the results after a version whose validation has begun anew."""
        again = [round_.version for round_ in self._rounds.running.values() if round_.validator.every]
        if again:
            self._results.reopen(min(again))
        return self._decide_results()

    # ------------------------------------------------------------ policies of the script

    def declare(self, sender: NodeId, message: DeclarePolicy) -> list[Output]:
        """Take a policy that the script asks for; the first worker that declares a number defines it.

        Raises:
            MismatchError: another worker declared this number differently, or it cannot be.
        """
        name, number = self._members.name(sender), message.number
        if number > len(self._declared):
            raise MismatchError(
                f"{name} called {message.policy.source} as its policy number {number + 1}, but the job knows only "
                f"{len(self._declared)}: every worker must call job.stop_when and job.on_plateau in the same order"
            )
        out: list[Output] = []
        if number == len(self._declared):
            try:
                message.policy.check()
            except UsageError as error:
                raise MismatchError(str(error)) from None
            self._add(message)
            out.append(PolicyFact(message))
        elif self._declared[number].policy != message.policy:
            raise MismatchError(
                f"{name} called {message.policy.source} as its policy number {number + 1}, the job has "
                f"{self._declared[number].policy.source} there: every worker, and every resume of the run, must call "
                "job.stop_when and job.on_plateau with the same arguments in the same order"
            )
        return [*out, Send(sender, Ok(message.req))]

    def _add(self, declared: DeclarePolicy) -> None:
        self._declared.append(declared)
        self._policies += policies_of(declared.policy)

    # ------------------------------------------------------------ events

    def committed(self, event: StepCommitted) -> list[Output]:
        """Ask the policies about a step."""
        if not self._policies:
            return []
        commit = event.commit
        if commit.step == INIT_STEP:
            self._began = self._clock.now
            return []
        low = self._log.watermark.low
        epochs = epochs_before(self._phases.schedule.segment(max(0, low - 1)), low) if low else 0
        bad = tuple(self._bad_slot(commit.step, slot) for slot in event.bad)
        return self._ask(StepDone(commit.step, commit.version, event.values, epochs, self._log.samples, bad))

    def _bad_slot(self, step: int, slot: int) -> BadSlot:
        assert self._identity.job is not None
        return BadSlot(slot, self._phases.schedule.known_samples(SlotId(step, slot), self._identity.job.seed))

    def tick(self) -> list[Output]:
        """Ask the policies about the time, which counts from the first version on."""
        if self._log.version < 0:
            return []
        if self._began is None:
            self._began = self._clock.now
        if not self._policies:
            return []
        return self._ask(Elapsed(self._earlier_s + self._clock.now - self._began))

    def round_ended(self, event: RoundEnded) -> list[Output]:
        """Ask the policies about a result of validation, once those before it are there."""
        result = self._result(event.number, event.version, event.metrics)
        if result is None:
            return []
        self._results.add(result)
        return self._decide_results()

    def _result(self, number: int, version: int, values: dict[str, float]) -> Decided | None:
        if not 0 <= number < len(self._rounds.validators):
            return None  # of a log that does not name the validator
        return Decided(version, number, self._effect(self._rounds.validators[number], version), values)

    def _effect(self, validator: ValidatorSpec, version: int) -> int | None:
        """The step from which on leases wait for a result on `version`."""
        if not validator.every:
            return None
        at_end = any(phase.end_version == version for phase in self._phases.phases)
        return version if at_end else version + validator.every

    def _decide_results(self) -> list[Output]:
        out: list[Output] = []
        while (result := self._results.take(self._is_early)) is not None:
            if self._policies:
                out += self._ask(self._validation(result))
        return out

    def _is_early(self, result: Decided) -> bool:
        """Whether an open round will have a result that a decision on `result` looks at."""
        for round_ in self._rounds.running.values():
            validator, version = round_.validator, round_.version
            if validator.every and Decided(version, -1, self._effect(validator, version), {}).is_before(result):
                return True
        return False

    def _validation(self, result: Decided) -> ValidationDone:
        """The event of `result`: it shows what each run has at this point, whatever else is there already."""
        validators, series = self._rounds.validators, series_of(self._rounds.validators[result.number])
        seen = [known for known in self._results.decided if known.is_before(result)]
        shown = names(validators, [(known.number, known.version, known.values) for known in seen])

        def named(known: Decided) -> dict[str, float]:
            mine = series_of(validators[known.number])
            return {shown[mine, name]: value for name, value in known.values.items()}

        same = [known for known in seen if series_of(validators[known.number]) == series and known is not result]
        ran = {series_of(validators[known.number]) for known in seen}
        return ValidationDone(
            validators[result.number].name,
            result.version,
            named(result),
            result.step,
            tuple((known.version, named(known)) for known in sorted(same, key=lambda known: known.version)),
            tuple(shown.values()),
            ran.issuperset(series_of(v) for v in validators if v.every and v.data_len),
        )

    # ------------------------------------------------------------ what follows

    def _ask(self, event: PolicyEvent) -> list[Output]:
        decisions = ask(self._policies, event)
        if not decisions or self._segments.is_over:
            return []
        out: list[Output] = []
        for decision in decisions:
            match decision:
                case WarnUser(topic, text):
                    out.append(WarningFound(topic, text))
                case FailJob(reason):
                    return [JobFailed("script", reason)]
                case ScaleRate(reason, factor, step):
                    out += self._dials.scale_rate(factor, reason, step)
        return out + self._segments.stop_by(decisions)
