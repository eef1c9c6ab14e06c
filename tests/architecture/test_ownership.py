"""One owner for every fact: a module changes only the attributes of its own classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.architecture.house import check_table, package, snippet
from tools.house import late, shared
from tools.ownership import violations

VIOLATIONS: dict[str, int] = {}
"""Statements of each module that change another's state. May only shrink: a number that is too high fails as well."""

SHARED = 0
"""Attributes of the coordinator's state that two or more modules write. May only shrink."""

LATE: dict[str, str] = {}
"""Attributes of classes in core that another module assigns a function to, with where. May only shrink."""

OWNER = """
    from collections.abc import Callable
    from collections import deque
    from dataclasses import dataclass, field

    @dataclass
    class Entry:
        seen: float = 0.0
        names: list[str] = field(default_factory=list)

    class Owner:
        def __init__(self) -> None:
            self.count = 0
            self.items: dict[str, list[int]] = {}
            self.entries: dict[str, Entry] = {}
            self.queue: deque[int] = deque()
            self.told: Callable[[], None] = lambda: None

        def add(self, key: str) -> None:
            self.items.setdefault(key, []).append(1)
            entry = self.entries[key]
            entry.seen = 1.0

        @property
        def waiting(self) -> deque[int]:
            return self.queue
"""

OTHER = """
    from heapq import heappush
    from paceline.core.owner import Entry, Owner

    class Other:
        def __init__(self, owner: Owner) -> None:
            self._owner = owner
            self._mine: dict[str, list[int]] = {{}}
            self._taken = owner.items
            self._copied = dict(owner.items)

        def turn(self, key: str, found: Owner | None, out: list[int]) -> None:
            {statement}
"""

FOREIGN = [
    "self._owner.count = 1",
    "self._owner.count += 1",
    "self._owner.count, x = 1, 2",
    "owner = self._owner; owner.count = 1",
    "found.count = 1",
    "setattr(found, 'count', 1)",
    "self._owner.items[key] = []",
    "del self._owner.items[key]",
    "self._owner.items.pop(key)",
    "self._owner.items[key].append(1)",
    "self._owner.items.get(key).append(1)",
    "self._owner.items.setdefault(key, []).append(1)",
    "items = self._owner.items; items.clear()",
    "row = self._owner.items[key]; row.extend([1])",
    "for row in self._owner.items.values(): row.remove(1)",
    "for _, row in self._owner.items.items(): row.insert(0, 1)",
    "self._owner.entries[key].seen = 1.0",
    "self._owner.entries[key].names.append(key)",
    "entry = self._owner.entries.get(key); entry.seen = 1.0",
    "for entry in self._owner.entries.values(): entry.seen = 1.0",
    "x = [self._owner.queue.popleft() for _ in range(3)]",
    "self._owner.waiting.append(1)",
    "heappush(self._owner.queue, 1)",
    "unknown.state = 1",
    "self._taken[key] = []",
    "self._taken.pop(key)",
]

OWN = [
    "self._mine[key] = [1]",
    "self._mine.setdefault(key, []).append(1)",
    "row = self._mine[key]; row.append(1)",
    "self.later = 1",
    "self._copied.pop(key)",
    "self._owner.add(key)",
    "found.add(key)",
    "entry = Entry(); entry.seen = 1.0; entry.names.append(key)",
    "rows = [1]; rows.append(2); rows[0] = 3",
    "rows = list(self._owner.queue); rows.append(2)",
    "rows = dict(self._owner.items); rows[key] = []",
    "out.append(self._owner.count)",
    "x = self._owner.items[key]",
]


def _found(folder: Path, statement: str, module: str = "core/worker/other.py") -> list[str]:
    name = module.removesuffix(".py").replace("/", "__")
    source = snippet(folder, core__owner=OWNER, **{name: OTHER.format(statement=statement)})
    return [str(write) for write in violations(source, module)]


@pytest.mark.parametrize("statement", FOREIGN)
def test_a_change_of_another_modules_state_is_found(tmp_path: Path, statement: str) -> None:
    assert len(_found(tmp_path, statement)) == 1


@pytest.mark.parametrize("statement", OWN)
def test_a_change_of_the_modules_own_state_is_allowed(tmp_path: Path, statement: str) -> None:
    assert _found(tmp_path, statement) == []


@pytest.mark.parametrize("room", ["coordinator", "server", "worker", "sim"])
def test_a_shell_may_not_change_a_core(tmp_path: Path, room: str) -> None:
    assert len(_found(tmp_path, "self._owner.count = 1", f"{room}/other.py")) == 1
    assert _found(tmp_path, "self._owner.add(key)", f"{room}/other.py") == []


def test_inherited_state_has_another_owner(tmp_path: Path) -> None:
    child = """
        from paceline.core.owner import Owner

        class Child(Owner):
            def __init__(self) -> None:
                super().__init__()
                self.mine = 0

            def turn(self) -> None:
                self.mine += 1
                self.count = 2
                self.items.clear()
    """
    source = snippet(tmp_path, core__owner=OWNER, core__child=child)
    assert [w.attribute for w in violations(source, "core/child.py")] == ["count", "items"]


def test_the_implementation_of_a_protocol_owns_its_attributes(tmp_path: Path) -> None:
    protocol = """
        from typing import Protocol

        class Store(Protocol):
            version: int
    """
    real = """
        from paceline.core.store import Store

        class Dense(Store):
            def __init__(self) -> None:
                self.version = 0
    """
    source = snippet(tmp_path, core__store=protocol, core__dense=real)
    assert violations(source, "core/dense.py") == []


def test_shared_attributes_and_late_callables_are_counted(tmp_path: Path) -> None:
    dispatch = """
        from paceline.core.owner import Owner

        class Dispatch:
            def __init__(self, owner: Owner) -> None:
                self._owner = owner
                owner.told = self.turn

            def turn(self) -> None:
                self._owner.count = 1
    """
    source = snippet(tmp_path, core__owner=OWNER, core__coordinator__dispatch=dispatch)
    assert list(shared(source)) == ["Owner.count", "Owner.told"]
    assert list(late(source)) == ["Owner.told"]


def test_every_module_changes_only_its_own_state() -> None:
    found = {module: violations(package(), module) for module in package().trees}
    listed = {module: [str(write) for write in writes] for module, writes in found.items() if writes}
    check_table({module: len(writes) for module, writes in listed.items()}, VIOLATIONS)


def test_no_attribute_of_the_coordinator_is_written_from_two_modules() -> None:
    assert len(shared(package())) == SHARED, shared(package())


def test_no_callable_is_bound_late_in_core() -> None:
    check_table({name: where.partition(":")[0] for name, where in late(package()).items()}, LATE)
