"""The Spark session: found, or made with settings that suit many short jobs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.engines.spark.class_archive import java_options
from headgate.engines.spark.java import SMALL, find_java, require_java
from headgate.errors import RunError

DEFAULT_MASTER = "local[*]"
_LOCAL = re.compile(r"local(\[.*\])?")
Connectors = Callable[[], Sequence[str]]

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

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOCAL_SETTINGS = {
    # A step takes a tenth of a second on cores that the driver shares with the tasks: a quick compiler and a
    # plain collector leave more of them (measured: steps a quarter shorter, a start a second shorter).  The
    # driver of a cluster has its cores to itself, and often a large heap: it keeps Java's own choice.
    JAVA_OPTIONS: SMALL,
}
"""Further settings where tasks run in the driver's own process."""
DAEMON = {"spark.python.daemon.module": "headgate.engines.spark.daemon"}
"""Where workers have this Python and so this package: they are forks of a process that has it loaded."""


def open_session(master: str, app: str, options: Mapping[str, str], connectors: Connectors) -> Any:
    """A session on ``master``; one that the process already has is used as it is.

    ``connectors`` gives the jars that the application's sources and sinks need; a session that is there
    already has them or not, which shows when they are used.
    """
    from pyspark.sql import SparkSession

    remote = master.startswith("sc://")
    found = existing()
    if found is not None:
        if remote and not is_connect(found):
            raise RunError(
                f"Spark(master='{master}'): this process already has a Spark session of its own, and cannot "
                "have one at a Connect server as well. Stop it first (session.stop()), or leave master= out."
            )
        _warn_of_other(master, found)
        return found
    if remote:
        try:
            return SparkSession.builder.remote(master).getOrCreate()
        except Exception as error:
            raise RunError(
                f"There is no Spark Connect session at {master}: {first_line(error)}. Sessions there need "
                "pip install 'headgate[connect]' and a server that runs."
            ) from error
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    given = _submitted()
    if given is None:
        builder = builder.master(options.get("spark.master", master))
    elif master not in (DEFAULT_MASTER, given.get("spark.master")):
        warnings.warn(
            f"Spark(master='{master}') is not used: spark-submit has chosen {given.get('spark.master')}.",
            stacklevel=2,
        )
    chosen = options.get("spark.master", master) if given is None else given.get("spark.master", "")
    wanted = {**defaults(chosen, given or {}), **options}
    if given is None and _LOCAL.fullmatch(chosen) and JAVA_OPTIONS not in options:
        wanted[JAVA_OPTIONS] += java_options()
    if given is None and _LOCAL.fullmatch(chosen) and _is_this(_python(options)):
        wanted = {**DAEMON, **wanted}
    for name, value in with_jars(wanted, connectors() if given is None else []).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        # Asking Java for its version takes as long as starting one more, so it is asked only now.
        require_java()
        raise RunError(f"Spark could not be started on {master}: {first_line(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def defaults(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session on ``master``, but for those that spark-submit was ``given``."""
    settings = {**SETTINGS, **(LOCAL_SETTINGS if _LOCAL.fullmatch(master) else {})}
    return {name: value for name, value in settings.items() if name not in given}


def existing() -> Any:
    """The session that this process has already, or None."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # A thread of its own has no active session, but the process has one by default.
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return None
    stopped = session.is_stopped if is_connect(session) else session.sparkContext._jsc is None
    return None if stopped else session


def is_connect(session: Any) -> bool:
    """Whether a session is one of Spark Connect's, which has no context in this process."""
    module = sys.modules.get("pyspark.sql.connect.session")
    return module is not None and isinstance(session, module.SparkSession)


def is_local(session: Any) -> bool:
    """Whether tasks run on this machine, with this Python, where the package is."""
    if is_connect(session) or not _LOCAL.fullmatch(session.sparkContext.master):
        return False
    return _is_this(session.sparkContext.pythonExec)


def _is_this(python: str) -> bool:
    found = shutil.which(python)
    return found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)


def _python(options: Mapping[str, str]) -> str:
    """The Python of a new session's workers."""
    return options.get("spark.pyspark.python", os.environ["PYSPARK_PYTHON"])


def _submitted() -> dict[str, str] | None:
    """What spark-submit was told, if it started this program; what it was told goes before our settings."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _warn_of_other(master: str, session: Any) -> None:
    if master == DEFAULT_MASTER or is_connect(session):
        return
    own = session.sparkContext.master
    if own != master:
        warnings.warn(
            f"Spark(master='{master}') is not used: this process already has a Spark session on {own}, and "
            "can have one only. Stop that first (session.stop()) to run elsewhere.",
            stacklevel=2,
        )


def with_jars(options: Mapping[str, str], jars: Sequence[str]) -> dict[str, str]:
    """The options with these jars beside those that they name already."""
    named = [jar for jar in options.get("spark.jars", "").split(",") if jar]
    # Who names the connector himself has chosen its version.
    own = any("spark-sql-kafka" in options.get(name, "") for name in ("spark.jars", "spark.jars.packages"))
    wanted = named + ([] if own else [jar for jar in jars if jar not in named])
    return {**options, **({"spark.jars": ",".join(wanted)} if wanted else {})}


def parallelism(session: Any) -> int:
    """How many tasks can run at once."""
    if not is_connect(session):
        return max(1, int(session.sparkContext.defaultParallelism))
    # Spark Connect does not say; how a range is cut by default does.
    rows = session.range(0, 10_000).selectExpr("spark_partition_id() AS p").distinct().count()
    return max(1, int(rows))


def present_cores(session: Any) -> int | None:
    """How many tasks can run at once now; None if it costs a job to find out, or the session has ended."""
    if is_connect(session):
        return None
    try:
        return parallelism(session)
    except Exception:  # a step will say it
        return None


_BY_CALL = re.compile(r"An error occurred while calling \S+\s*")
_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"^[A-Z]\w*(?:\.\w+)*(?:Error|Exception|Exit|Row): .+$", re.MULTILINE)
_CLASS = re.compile(r"(?:[\w$]+\.)+[\w$]*(?:Exception|Error): ")


def first_line(error: BaseException) -> str:
    """What Spark says, without the names of Java's classes, the plan and the stack that follow it."""
    text = str(error)
    if _TRACEBACK in text:
        raised = _RAISED.findall(text.split(_TRACEBACK, 1)[1])
        if raised:
            return f"in a Python worker: {raised[-1]}"
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    if len(lines) > 1 and _BY_CALL.fullmatch(lines[0]):
        del lines[0]
    return _CLASS.sub("", lines[0], count=1) if lines else type(error).__name__
