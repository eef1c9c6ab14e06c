"""Java processes that start with less work: most of the processor time of a short Spark run is that of the compiler."""

from __future__ import annotations

from pathlib import Path

_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CONF = f"""\
spark.driver.extraJavaOptions {_OPTIONS}
spark.executor.extraJavaOptions {_OPTIONS}
spark.ui.enabled false
"""


def quick_java(folder: Path) -> dict[str, str]:
    """Environment variables for Spark: for drivers, executors, masters and workers. `folder` gets a configuration."""
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(_CONF)
    return {"SPARK_CONF_DIR": str(folder), "SPARK_DAEMON_JAVA_OPTS": _OPTIONS, "SPARK_LAUNCHER_OPTS": _OPTIONS}
