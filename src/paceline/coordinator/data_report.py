"""What the status and the summary say about data: how long workers waited, and which sampler is behind."""

from __future__ import annotations

from typing import Any

from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.messages.status import DataWaitStatus, ProcessStatus, SamplerStatus, Status
from paceline.types import pid_of

_SHOWN = 0.05  # a smaller share of waits is not worth a word
_JUDGED = 16  # answers after which a sampler can be behind


def samplers(core: CoordinatorCore) -> tuple[SamplerStatus, ...]:
    """The samplers that are heard, in order of name."""
    known = sorted(core.machines.samplers.known.values(), key=lambda sampler: sampler.name)
    return tuple(
        SamplerStatus(
            s.name,
            s.work.prepared,
            s.work.served,
            s.work.late,
            s.work.ahead,
            s.work.nbytes,
            s.work.served >= _JUDGED and 2 * s.work.late > s.work.served,
        )
        for s in known
    )


def sampler_processes(core: CoordinatorCore) -> tuple[ProcessStatus, ...]:
    """The processes of the samplers. One works when it has answered a question."""
    return tuple(
        ProcessStatus(s.name, "sampler", pid_of(s.node), s.node, s.start, s.work.served > 0, "", s.host)
        for s in core.machines.samplers.known.values()
    )


def of_data(core: CoordinatorCore) -> dict[str, Any]:
    """The fields of the status about data."""
    waits = core.machines.data_waits
    workers = {m.name: round(waits.shares.get(m.node, 0.0), 4) for m in core.tables.members.active_workers()}
    return {
        "wanted_samplers": core.machines.samplers.wanted,
        "samplers": samplers(core),
        "data_wait": DataWaitStatus(round(waits.waited_s, 3), round(waits.share, 4), workers),
    }


def of_summary(core: CoordinatorCore) -> dict[str, Any]:
    """The fields of the summary about data."""
    waits = core.machines.data_waits
    both = waits.waited_s + waits.computed_s
    share = waits.waited_s / both if both else 0.0
    return {
        "data_wait_s": round(waits.waited_s, 3),
        "data_wait_share": round(share, 4),
        "samplers": samplers(core),
    }


def in_progress(status: Status) -> list[str]:
    """What the progress line says: the share of the time in which workers wait, and the samplers that are behind."""
    share = status.data_wait.share
    if share < _SHOWN:
        return []
    behind = [sampler.name for sampler in status.samplers if sampler.behind]
    return [f"{share:.0%} waiting for data" + f" ({', '.join(behind)} behind)" * bool(behind)]


def in_words(sampler: SamplerStatus) -> str:
    """What a sampler does, for people."""
    text = f"{sampler.prepared} slots prepared, {sampler.served} handed over, {sampler.late} of them late"
    text += f"; {sampler.ahead} ahead, {sampler.nbytes / 2**20:.0f} MiB"
    return text + "; behind" * sampler.behind
