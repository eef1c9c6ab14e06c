"""Compute from the log the hash chains that a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.core.audit.ledger import Ledger
from paceline.core.effects import IncarnationFact
from paceline.core.hash_chain import START, extend

Point = tuple[int, int]
"""(incarnation, version)"""

_Groups = list[tuple[frozenset[int], bytes]]  # blocks with the same history share one chain, which is computed once


def maker(begun: Mapping[int, IncarnationFact], point: Point) -> Point:
    """The incarnation that committed the version of `point`, with that version.

    This is an earlier incarnation if the incarnation of `point` began from this version or a later one.
    """
    incarnation, version = point
    while (parent := _parent(begun, incarnation)) is not None and version <= parent[1]:
        incarnation = parent[0]
    return incarnation, version


def _parent(begun: Mapping[int, IncarnationFact], incarnation: int) -> Point | None:
    position = begun[incarnation].position if incarnation in begun else None
    return None if position is None else (position.incarnation, position.version)


def chains_at(
    ledger: Ledger, begun: Mapping[int, IncarnationFact], points: Iterable[Point], num_blocks: int
) -> dict[Point, tuple[bytes, ...]]:
    """Compute the chain of every block at each point, from the commits on the lineage of the point.

    Points that are not in the log are left out. Each commit is hashed once, however many points follow it.
    """
    points = list(points)
    wanted: dict[int, set[int]] = {}
    todo = [maker(begun, point) for point in points]
    while todo:
        incarnation, version = todo.pop()
        known = wanted.setdefault(incarnation, set())
        parent = _parent(begun, incarnation)
        if not known and parent is not None:
            todo.append(maker(begun, parent))
        known.add(version)
    found: dict[Point, _Groups] = {}
    for incarnation in sorted(wanted):
        parent = _parent(begun, incarnation)
        groups: _Groups | None = [(frozenset(range(num_blocks)), START)]
        if parent is not None:
            groups = found.get(maker(begun, parent))
        if groups is not None:
            _walk(ledger, incarnation, groups, wanted[incarnation], found)
    return {p: _by_block(found[at], num_blocks) for p in points if (at := maker(begun, p)) in found}


def _walk(ledger: Ledger, incarnation: int, groups: _Groups, wanted: set[int], found: dict[Point, _Groups]) -> None:
    for row, version, step, fences in ledger.each(ledger.rows(incarnation, max(wanted))):
        after: _Groups = []
        for members, chain in groups:
            rest = members
            for blocks, others in ledger.variants.get(row, ()):
                part = rest.intersection(blocks)
                if part:
                    after.append((part, extend(chain, version, step, others)))
                    rest -= part
            if rest:
                after.append((rest, extend(chain, version, step, fences)))
        groups = after
        if version in wanted:
            found[incarnation, version] = groups


def _by_block(groups: _Groups, num_blocks: int) -> tuple[bytes, ...]:
    chains = {block: chain for members, chain in groups for block in members}
    return tuple(chains[block] for block in range(num_blocks))
