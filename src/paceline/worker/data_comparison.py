"""Asks the coordinator whether this worker has the same data as the others."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.data.fingerprint import Fingerprints
from paceline.data.loader import BatchMaker
from paceline.messages import CompareData, Ok
from paceline.types import DataFingerprint
from paceline.worker.session import Session
from paceline.worker.validation import Validator


class DataComparison:
    """Compares the data of this worker, each data set once."""

    def __init__(self, session: Session, fingerprints: Fingerprints) -> None:
        self._session = session
        self._fingerprints = fingerprints

    def compare(self, use: str, maker: BatchMaker) -> DataFingerprint:
        """Compare the data of `maker`, which the script uses in the call `use`, unless they were compared before.

        Returns their fingerprint.

        Raises:
            MismatchError: the data differ. The job fails, or goes on without this worker.
        """
        fingerprint, is_new = self._fingerprints.find(maker)
        if is_new:
            self._session.ask(lambda req: CompareData(req, use, fingerprint), Ok)
        return fingerprint

    def compare_loop(self, phase: int, train: BatchMaker, validators: Iterable[Validator]) -> DataFingerprint:
        """Compare the data of a loop, and of the validators so far, with those of others; return its fingerprint."""
        fingerprint = self.compare(f"loop number {phase + 1} (job.batches)", train)
        for validator in validators:
            # Now, not when it was declared: loader processes that read the same files must be forked before.
            self.compare(f"the validation {validator.name}", validator.batches)
            validator.batches.close()
        return fingerprint
