"""The Spark session: found, or made with settings that suit many short jobs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Any

from headgate.errors import RunError

JAVA = 17

SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    # A step is short and there are many: what the UI keeps of them must not fill the driver.
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "2000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.locality.wait": "0s",
}


def open_session(master: str, app: str, options: dict[str, str]) -> Any:
    """A session on ``master``; one that the process already has is used as it is."""
    from pyspark.sql import SparkSession

    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    if "SPARK_SUBMIT" not in os.environ and "spark.master" not in options:
        builder = builder.master(master)
    for name, value in (SETTINGS | options).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise RunError(f"Spark could not be started on {master}: {_first_line(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def require_java() -> None:
    """Say what is missing before Spark fails in its own words."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    how = (
        f"Spark needs Java {JAVA} or newer: `make java` installs it, or install openjdk-{JAVA}-jre-headless "
        "yourself and, if there are several, point JAVA_HOME at it. Or run with engine='threads'."
    )
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, where there is no Java" if home else "there is no Java here"
        raise RunError(f"The Spark engine cannot start: {where}. {how}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < JAVA:
        raise RunError(f"The Spark engine cannot start: {java} is Java {found[1]}. {how}")


def parallelism(session: Any) -> int:
    """How many tasks can run at once."""
    try:
        return max(1, int(session.sparkContext.defaultParallelism))
    except Exception:
        # Spark Connect does not say; how a range is cut by default does.
        rows = session.range(0, 10_000).selectExpr("spark_partition_id() AS p").distinct().count()
        return max(1, int(rows))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
