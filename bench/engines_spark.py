"""The Spark half of `bench/engines.py`: a cluster that is already up, and what Spark itself costs on it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.testing.engines.spark_nodes import SparkNodes

_EMPTY = """
import sys
from pyspark import SparkConf, SparkContext

conf = SparkConf().setMaster(sys.argv[1]).setAppName("empty").set("spark.ui.enabled", "false")
conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
context = SparkContext(conf=conf)
assert context.parallelize([1], 1).count() == 1
print("counted", flush=True)
context.stop()
"""
_TIMEOUT_S = 300.0


@contextmanager
def cluster(nodes: int, cores: int) -> Iterator[tuple[SparkNodes, list[str]]]:
    """A standalone cluster of this machine, and the options of ``paceline run`` that use it."""
    found = SparkNodes(cores)
    try:
        yield found, found.start(nodes)
    finally:
        found.close()


def empty_action_s(spark: SparkNodes) -> float:
    """Seconds from the command to the end of the first action of an empty Spark program."""
    began = time.monotonic()
    command = [sys.executable, "-c", _EMPTY, spark.address]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.monotonic() - began
        process.wait(_TIMEOUT_S)
    if line.strip() != "counted":
        raise RuntimeError(f"the empty Spark program ended with {process.returncode}")
    return seconds


if __name__ == "__main__":
    with cluster(1, 1) as (started, _):
        time.sleep(10.0)  # for the node to register
        print(f"an empty Spark action takes {empty_action_s(started):.1f} s from its command")
