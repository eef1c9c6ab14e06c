"""Compares the content of copies with that of their primaries, for every checkpoint. Rule 12.

Hash chains say which commits a copy has applied; they cannot see a bit that changed in memory. So each holder of a
block reports a hash of its content at the version of the checkpoint. The checkpoint does not wait for these reports.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import CopiesDiffer, Output, PlacementDecided, WarningFound
from paceline.core.effects import History
from paceline.messages import Hashed, Position
from paceline.types import NodeId, Placement

_BLOCKS_NAMED = 5
_VERSIONS = 3


class CopyContents:
    """Owns the content hashes of the last versions that were saved, by server. Slow servers report older ones."""

    def __init__(self, tables: Tables) -> None:
        self._members = tables.members
        self._placed = tables.placed
        self._known: dict[int, dict[NodeId, Mapping[int, bytes]]] = {}

    def restore(self, history: History) -> list[Output]:
        """Begin without reports: the next checkpoint compares again."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Forget the reports of the incarnation that has ended."""
        self._known.clear()
        return []

    def void(self, event: PlacementDecided) -> list[Output]:
        """Forget the reports of the epoch that has ended."""
        self._known.clear()
        return []

    def hashed(self, sender: NodeId, message: Hashed) -> list[Output]:
        """Compare the blocks of `sender`. Copies that differ are named in a warning, and made again."""
        placement = self._placed.placement
        if placement is None or not self._placed.is_current(message.incarnation, message.epoch):
            return []
        known = self._known.setdefault(message.version, {})
        known[sender] = dict(message.contents)
        for version in sorted(self._known)[:-_VERSIONS]:
            del self._known[version]
        found = differing(placement, known, {node: self._kind(node) for node in known})
        if not found:
            return []
        warnings = [self._warning(placement, node, blocks, message.version) for node, blocks in found.items()]
        return [*warnings, CopiesDiffer(found)]

    def _kind(self, node: NodeId) -> str:
        member = self._members.members.get(node)
        return "" if member is None else member.fingerprint

    def _warning(self, placement: Placement, node: NodeId, blocks: frozenset[int], version: int) -> WarningFound:
        """The warning about a server whose copies differ; one for each server in a job."""
        name, primaries = self._members.name(node), {placement.owners[b] for b in blocks}
        others = " and ".join(sorted(map(self._members.name, primaries)))
        named = ", ".join(map(str, sorted(blocks)[:_BLOCKS_NAMED])) + " …" * (len(blocks) > _BLOCKS_NAMED)
        word = "blocks" if len(blocks) > 1 else "block"
        text = (
            f"the checkpoint of version {version} found copies on {name} that differ from those on {others} ({word} "
            f"{named}): they are made again from {others}. Equal machines compute equal bits, so the memory of one of "
            "these machines may be faulty: test it"
        )
        return WarningFound(f"differing copies on {name}", text)


def differing(
    placement: Placement, known: Mapping[NodeId, Mapping[int, bytes]], kinds: Mapping[NodeId, str]
) -> dict[NodeId, frozenset[int]]:
    """The backups whose content is not that of the primary, each with the blocks that differ.

    Only members of the in-sync sets that have reported are compared. Servers with unequal fingerprints (`kinds`) may
    round differently, which a warning has said: their copies are not compared.
    """
    found: dict[NodeId, set[int]] = {}
    for block, members in enumerate(placement.backups):
        owner = placement.owners[block]
        expected = known.get(owner, {}).get(block)
        if expected is None:
            continue
        for node in members:
            if known.get(node, {}).get(block, expected) != expected and kinds.get(node) == kinds.get(owner):
                found.setdefault(node, set()).add(block)
    return {node: frozenset(blocks) for node, blocks in found.items()}
