"""Compares the data of the workers: each must see the same sample at the same position.

The first worker that uses data in a call of the script defines them, durably. So a worker that starts again, also in a
resumed run, is compared with the data that the job has trained on.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import Output, WarningFound
from paceline.core.effects import DataChangeFact, DataFact, History, Send
from paceline.errors import MismatchError
from paceline.messages import CompareData, Ok, Position
from paceline.types import DataFingerprint, NodeId


class DataChecks:
    """Owns the fingerprints of the data that the job uses, by the call of the script that uses them."""

    def __init__(self, tables: Tables) -> None:
        self._members = tables.members
        self._identity = tables.identity
        self._first: dict[str, DataFact] = {}
        self._before: set[str] = set()  # calls whose data an earlier coordinator has noted

    def restore(self, history: History) -> list[Output]:
        """Take over the fingerprints of the log."""
        for row in history.facts:
            if isinstance(row.fact, DataFact):
                self._first[row.fact.use] = row.fact
            elif isinstance(row.fact, DataChangeFact):
                self._first.clear()
        self._before = set(self._first)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Keep the fingerprints: the job uses the same data again."""
        return []

    def forget(self) -> list[Output]:
        """Forget the data of the job so far: the user resumes it with changes."""
        self._first.clear()
        self._before.clear()
        return [DataChangeFact()]

    def compare(self, sender: NodeId, message: CompareData) -> list[Output]:
        """Compare the data of a worker with those of the first worker; the first one defines them.

        Raises:
            MismatchError: the data differ.
        """
        worker = self._members.name(sender)
        ok = [*_warning(message.use, message.fingerprint), Send(sender, Ok(message.req))]
        known = self._first.get(message.use)
        if known is None:
            known = self._first[message.use] = DataFact(message.use, worker, message.fingerprint)
            return [known, *ok]
        changed = changed_file(known.fingerprint, message.fingerprint)
        what = changed or difference(known.fingerprint, message.fingerprint)
        if not what:
            return ok
        problem = f"{worker} has other data than {known.worker} had in {message.use}: {what}"
        if changed or known.fingerprint.platform == message.fingerprint.platform:
            if self._identity.spec.resume is not None and message.use in self._before:
                raise MismatchError(
                    f"the data are not those of the run: in {message.use}, {what} ({worker}). Put the data back as "
                    "they were, or add --allow-changes to continue with these. If the data are a random split or a "
                    "list of files: make the split after paceline.join(), which seeds torch, and sort the list"
                )
            raise MismatchError(
                f"{problem}. Every worker must see the same sample at the same position: make a random split after "
                "paceline.join(), which seeds torch, numpy.random and random, or seed it "
                "(numpy.random.default_rng(0)), and sort lists of files"
            )
        hint = "the kind of CPU or the versions of packages differ, too. The result depends on who computes a slot"
        return [WarningFound("data", f"{problem}; {hint}"), *ok]


def _warning(use: str, fingerprint: DataFingerprint) -> list[Output]:
    """A warning if a sample of the data differs from one reading to the next."""
    if not fingerprint.unstable:
        return []
    text = (
        f"{fingerprint.unstable} (in {use}) differs from one reading to the next, so the result will depend on the "
        "number of workers. Draw random numbers from torch, numpy.random or random, which are seeded for each sample, "
        "not from a generator of the data set's own (numpy.random.default_rng, torch.Generator, random.Random)"
    )
    return [WarningFound("random data", text)]


def changed_file(known: DataFingerprint, mine: DataFingerprint) -> str:
    """Which file of `mine` is not that of `known`; empty if all are, or if one of both names no files."""
    if not known.files or not mine.files or known.files == mine.files:
        return ""
    before, now = dict(known.files), dict(mine.files)
    changed = [name for name, digest in before.items() if now.get(name, digest) != digest]
    missing, new = [n for n in before if n not in now], [n for n in now if n not in before]
    kinds = (("has changed", changed), ("is missing", missing), ("is new", new))
    found = [
        f"{names[0]} {what}" + f" (and {len(names) - 1} more)" * (len(names) > 1) for what, names in kinds if names
    ]
    return "; ".join(found) or "the files are in another order"


def difference(known: DataFingerprint, mine: DataFingerprint) -> str:
    """In what the data of `mine` differ from `known`; empty if they may be the same.

    Different lengths are found and named where the length is used.
    """
    if known.length != mine.length:
        return ""
    if known.source != mine.source:
        return f"the source is {mine.source!r} instead of {known.source!r}"
    digests = dict(known.samples)
    differing = [position for position, digest in mine.samples if digests.get(position, digest) != digest]
    return f"sample {min(differing)} of {mine.length} differs" if differing else ""
