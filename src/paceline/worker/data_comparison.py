"""Asks the coordinator whether this worker has the same data as the others."""

from __future__ import annotations

from paceline.data.fingerprint import Fingerprints
from paceline.data.loader import BatchMaker
from paceline.messages import CompareData, Ok
from paceline.types import DataFingerprint
from paceline.worker.session import Session


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
