"""The long campaigns: options of ``paceline dev chaos`` by name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

SCRIPT = Path(__file__).parent / "train.example"
"""The script of most campaigns: a small model whose turns sleep some milliseconds, so that faults are likely to happen
during a turn, and restarted processes get CPU time."""

_BSP = "-w 3 -s 2 --mode bsp --slots 4 --plain-shape 1x1"
_GROUP = "-w 3 -s 0 --mode allreduce --slots 4 --plain-shape 1x1"
_COPIED = "-w 3 -s 3 --replicas 1 --mode bsp --slots 4 --plain-shape 1x1"

CAMPAIGNS: Mapping[str, str] = {
    "kills": f"--kill worker=100 --kill coordinator=100 --per-round 25 {_BSP} --limit worker=1 --limit coordinator=3",
    "rewinds": f"--kill server=30 --per-round 10 {_BSP}",
    "ssp": "--kill worker=25 --kill coordinator=15 --kill server=10 --per-round 25 -w 3 -s 2 --mode ssp:3",
    "asp": "--kill worker=25 --kill coordinator=15 --kill server=10 --per-round 25 -w 3 -s 2 --mode asp",
    "saving": "--kill-saving server=20 --kill-saving coordinator=80 --per-round 25 --checkpoint-every 10 "
    f"{_BSP} {SCRIPT} --hidden 1024",
    "stops": f"--stop worker=30 --stop coordinator=20 --per-round 25 {_BSP}",
    "elastic": f"--term worker=15 --join worker=15 --kill worker=10 --per-round 20 {_BSP}",
    "power": "--kill-all 20 --per-round 10 --shape 3x1 --shape 2x2 -w 2 -s 2 --mode bsp --slots 4 --plain-shape 1x1",
    "launcher": "--kill-launcher 50 --per-round 25 -w 2 -s 1 --mode bsp --slots 4 --plain-shape 1x1",
    "messages": "--drop 0.002 --duplicate 0.02 --delay 0.02 --kill worker=10 --kill coordinator=5 --kill server=5 "
    f"--per-round 10 {_BSP}",
    "mixed": "--kill worker=20 --kill coordinator=10 --kill server=10 --stop worker=5 --stop coordinator=5 "
    f"--term worker=5 --join worker=5 --kill-all 3 --kill-saving server=3 --kill-saving coordinator=3 --per-round 23 "
    f"{_BSP}",
    "failover": f"--kill server=100 --per-round 25 {_COPIED} --limit server=2",
    "failover-ssp": "--kill server=50 --per-round 25 -w 3 -s 3 --replicas 1 --mode ssp:3 --limit server=2",
    "failover-asp": "--kill server=50 --per-round 25 -w 3 -s 3 --replicas 1 --mode asp --limit server=2",
    "roles": "--kill worker=50 --kill server=50 --kill coordinator=30 --stop worker=10 --stop server=10 "
    "--stop coordinator=10 --term worker=10 --join worker=10 --add server=10 --drain server=10 --per-round 25 "
    f"{_COPIED}",
    "cuts": f"--cut symmetric=30 --cut one-way=30 --cut flapping=30 --per-round 30 {_COPIED}",
    "allreduce": f"--kill worker=50 --per-round 25 {_GROUP} --limit worker=1.5",
    "allreduce-tcp": f"--kill worker=50 --per-round 25 --lane tcp {_GROUP} --limit worker=1.5",
    "allreduce-stops": f"--stop worker=20 --per-round 20 {_GROUP}",
    "allreduce-stops-tcp": f"--stop worker=20 --per-round 20 --lane tcp {_GROUP}",
    "allreduce-elastic": f"--term worker=20 --join worker=20 --per-round 20 {_GROUP}",
    "allreduce-elastic-tcp": f"--term worker=20 --join worker=20 --per-round 20 --lane tcp {_GROUP}",
    "allreduce-roles": "--kill worker=10 --kill coordinator=10 --kill-saving coordinator=5 --stop coordinator=3 "
    f"--kill-all 3 --per-round 16 {_GROUP}",
    "live": "--set mode=30 --kill worker=20 --kill coordinator=10 --per-round 30 -w 3 -s 2 --mode bsp",
    "storm": "--storm worker=40 --storm server=40 --storm coordinator=35 --storm fork-server=5 --checkpoint-every 30s "
    f"{_COPIED}",
    "strangers": "--strangers 20 --per-round 5 -w 2 -s 2 --mode bsp --slots 4 --plain-shape 1x1",
    "servers": f"--add server=20 --drain server=20 --per-round 20 {_COPIED} {SCRIPT} --hidden 2048",
}
"""The campaigns of ``paceline dev chaos --campaign all``. A campaign that names no script runs `SCRIPT`."""


def words_of(name: str) -> list[str]:
    """The arguments of a campaign's command line, with its script."""
    words = ["--plain-args", "--slot-ms 0", *shlex.split(CAMPAIGNS[name])]
    return words if str(SCRIPT) in words else [*words, str(SCRIPT)]
