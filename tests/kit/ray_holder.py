"""Holds a Ray cluster for tests in a process of its own: prints its address, and ends it when standard input ends.

python tests/kit/ray_holder.py NODES [--dashboard]
"""

from __future__ import annotations

import json
import sys

from paceline.testing.engines.ray_nodes import RayNodes


def main() -> None:
    dashboard = "--dashboard" in sys.argv
    nodes = RayNodes(cores=2, dashboard=dashboard)
    try:
        nodes.start(int(sys.argv[1]))
        shown = {"address": nodes.address, "nodes": nodes.nodes(), "env": nodes.environment}
        print(json.dumps(shown | {"dashboard": nodes.dashboard if dashboard else ""}), flush=True)
        sys.stdin.read()
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
