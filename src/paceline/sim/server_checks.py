"""Check the rules of servers: which attempts a sum adds, which sums become versions, which versions are sent out."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.server.block_store import SumKey
from paceline.core.server.dispatch import ServerCore
from paceline.messages import PullReply
from paceline.sim.log_checks import LogChecks
from paceline.sim.record import Record
from paceline.sim.symbols import Reads, SymbolStore, Term, Value
from paceline.sim.worker_checks import WorkerChecks
from paceline.sim.world import Violation
from paceline.types import INIT_STEP, Commit


class ServerChecks:
    """Observes the store of every server and raises `Violation`. A server may hold `hold` slots of a step at a time.

    In a group a step is summed when all its slots are leased, so a member may hold more.
    """

    def __init__(self, record: Record, log: LogChecks, workers: WorkerChecks, hold: int) -> None:
        self._record = record
        self._log = log
        self._workers = workers
        self._hold = hold

    def added(self, store: SymbolStore, key: SumKey, term: Term, before: Sequence[Term]) -> None:
        """Check an attempt that is added to a sum: in slot order, with its own gradients, from an allowed state."""
        name = f"slot {term.slot} of step {term.step} ({term.fence})"
        if term.step != key.step or (key.fence is not None and key.fence != term.fence):
            raise Violation(f"{name} is added to the sum of {key}")
        if term.slot != len(before):
            raise Violation(f"{name} is added after {len(before)} slots")
        if self._is_outdated(store) or self._log.is_outdated(term.step, term.fence):
            return  # the sums of an outdated server, or by an outdated plan, never become a version
        reads: Reads | None = None
        for block, gradient in term.gradients.items():
            if gradient[:4] != (term.step, term.slot, term.fence, block):
                raise Violation(f"{name}: its buffer of block {block} holds another gradient: {gradient[:5]}")
            if term.step != INIT_STEP and gradient.reads is not reads:
                reads = gradient.reads
                self._workers.may_compute(term.step, reads, name)

    def _is_outdated(self, store: SymbolStore) -> bool:
        """Whether the server still uses an older placement, and owns no block in the newest one.

        Workers reuse their buffers once a server has left the placement, so such a server may read wrong gradients.
        """
        placement = self._record.placement
        epoch, owners = (0, ()) if placement is None else (placement.epoch, placement.owners)
        return store.node not in owners and store.at() < (self._record.incarnation, epoch)

    def applied(self, store: SymbolStore, key: SumKey, commit: Commit, terms: Sequence[Term]) -> None:
        """Check a sum that became a version: the commit must be in the log, with the same attempts."""
        if not self._record.is_written(commit):
            raise Violation(f"commit {commit.version} is applied before it is written")
        line = self._record.lines[commit.incarnation]
        if [p.slot for p in terms] != list(range(len(commit.fences))):
            raise Violation(f"commit of step {commit.step} applies slots {[p.slot for p in terms]}")
        is_current = commit.incarnation == self._record.incarnation
        if is_current and self._log.was_one_attempt(commit) and tuple(p.fence for p in terms) != commit.fences:
            raise Violation(f"step {commit.step} applies {[p.fence for p in terms]}, the log says {commit.fences}")
        line.apply(commit, tuple(p.weight for p in terms))
        for block in store.blocks:
            line.set_value(commit.version, store.current[block], block, store.node)

    def loaded(self, store: SymbolStore, folder: str, version: int) -> None:
        """Check the blocks that a server loaded from a checkpoint."""
        for block, value in store.current.items():
            if self._record.line.truth[block][version] != value:
                raise Violation(f"{folder} has {value} as version {version} of block {block}")

    def copied(self, store: SymbolStore, version: int, values: Sequence[Value]) -> None:
        """Check copies of blocks that a server received. The values may be of any incarnation: the store knows none."""
        for value in values:
            known = (line.truth.get(value.block, [])[version : version + 1] for line in self._record.lines.values())
            if [value] not in known:
                raise Violation(f"{store.node} was sent {value} as version {version}")

    def held(self, server: ServerCore, step: int) -> None:
        """Check a server after a push: it may hold at most `hold` slots that wait for a lower slot."""
        entry = server.attempts.steps.get(step)
        if entry is not None and len(entry.attempts) > self._hold and not server.assignment.group:
            raise Violation(f"{server.node} holds {len(entry.attempts)} slots of step {step}, hold is {self._hold}")

    def replied(self, server: ServerCore, reply: PullReply) -> None:
        """Check a server's answer to a pull: versions in the log are readable, and the next one once it is ready."""
        if reply.ahead:
            step = server.attempts.steps.get(reply.version - 1)
            if reply.version != server.versions.applied + 1 or step is None or not step.ready:
                raise Violation(f"{server.node} sends out version {reply.version}, for which it is not ready")
            return
        if reply.version >= len(self._record.lines[reply.incarnation].log):
            raise Violation(f"{server.node} sends out version {reply.version}, which is not in the log")
