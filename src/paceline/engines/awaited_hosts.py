"""What the user is told while a run waits for hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from paceline.engines.host_options import HOSTS


def awaited(
    ready: int, needed: int, missing: Collection[str], left_s: float, how: str, problems: Iterable[str] = ()
) -> str:
    """What a run waits for that has `ready` of the `needed` hosts.

    The hosts that are `missing` carried roles of the run, which is adopted, and are awaited for `left_s` more seconds.
    `how` says how hosts come, and `problems` why some were turned away.
    """
    if missing and ready >= needed:
        return f"waits up to {left_s:.0f} s for {', '.join(sorted(missing))}: roles of the run may live there"
    text = f"waits for hosts: {ready} of {needed} are there"
    if missing:
        text += f"; {', '.join(sorted(missing))} carried roles of the run and may return"
    return f"{text} ({how})" + "".join(f"; turned away: {problem}" for problem in problems)


def how_hosts_come(engine: str, address: str) -> str:
    """How hosts come to a run whose supervisor listens at `address`, for the user."""
    if engine != HOSTS:
        return f"--engine {engine} brings them"
    return f"`paceline agent {address} --token-file FILE` on a machine adds it"
