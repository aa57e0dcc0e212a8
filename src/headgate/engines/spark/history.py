"""Ad-hoc questions to kept history: Spark SQL over the committed files, one view per query."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from headgate.engines.spark.java import require_java
from headgate.engines.spark.question import HistoryError, checked, unknown_history
from headgate.engines.spark.session import existing

COMMITTED = "part-*.parquet"
__all__ = ["HistoryError", "ask", "quoted"]
_AGAIN = 3
"""Files that expire between the listing and the reading are no error: list again, that often at most."""


def ask(
    views: Mapping[str, str],
    sql: str,
    *,
    schemas: Mapping[str, Mapping[str, str]] | None = None,
    limit: int | None = None,
) -> pa.Table:
    """The answer of Spark SQL to ``sql``, at most ``limit`` rows of it; anything but a SELECT is refused.

    ``views`` gives for every query the folder of its history, ``schemas`` its columns with their SQL types,
    needed only where no results have been committed yet.
    """
    _refuse_twins(views)
    question = checked(sql, views)
    spark = _session()
    # It would put variables of the environment into the question's texts.
    spark.conf.set("spark.sql.variable.substitute", "false")
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They would print what is raised anyway, with its Java stack.
        PySparkLogger.getLogger(logger).disabled = True
    empty: list[str] = []
    for attempt in range(_AGAIN):
        try:
            empty = [name for name in views if not _show(spark, name, views[name], (schemas or {}).get(name))]
            answer: DataFrame = spark.sql(question)
            return (answer if limit is None else answer.limit(limit)).toArrow()
        except PySparkException as error:
            if not _vanished(error) or attempt == _AGAIN - 1:
                raise _explained(error, list(views), empty) from error
    raise AssertionError("unreachable")


def _refuse_twins(views: Mapping[str, str]) -> None:
    seen: dict[str, str] = {}
    for name in views:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise HistoryError(
                f"The histories of '{other}' and '{name}' cannot be told apart in SQL, which ignores case; "
                "rename one of the queries."
            )


def _show(spark: SparkSession, name: str, folder: str, schema: Mapping[str, str] | None) -> bool:
    """Make the view; false if there is nothing to make it of."""
    files = sorted(str(path) for path in Path(folder).glob(COMMITTED))
    if files:
        frame = spark.read.parquet(*files)
    elif schema:
        columns = ", ".join(f"{quoted(column)} {kind}" for column, kind in schema.items())
        frame = spark.createDataFrame([], columns)
    else:
        return False
    frame.createOrReplaceTempView(quoted(name))
    return True


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


# --- errors ---------------------------------------------------------------------------------------------


def _vanished(error: PySparkException) -> bool:
    condition = error.getCondition() or ""
    return condition in ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST") or (
        "FileNotFoundException" in str(error)
    )


def _explained(error: PySparkException, known: list[str], empty: list[str]) -> HistoryError:
    if isinstance(error, AnalysisException) and error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        wanted = str((error.getMessageParameters() or {}).get("relationName", "")).replace("`", "")
        if wanted in empty:
            return HistoryError(f"Query '{wanted}' has committed no results yet; ask again later.")
        return unknown_history(wanted, known)
    return HistoryError(f"The question cannot be answered: {_first_line(str(error))}")


def _first_line(text: str) -> str:
    """Spark's message without the plan, the source and the Java stack that follow it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    first = lines[0] if lines else "no reason given"
    if first.startswith("[PARSE_SYNTAX_ERROR]"):
        first = first.split("(line ")[0]
    return first.removesuffix(";").strip()


# --- the session ----------------------------------------------------------------------------------------


def _session() -> SparkSession:
    """A session with views of its own: of the Spark of this process, or else of a local and quiet one."""
    found: SparkSession | None = existing()
    if found is not None:
        return found.newSession()
    require_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.appName("headgate query").master("local[*]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"headgate-warehouse-{os.getpid()}"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _said_aside() as said:
        try:
            session: SparkSession = builder.getOrCreate()
        except Exception as error:
            raise HistoryError(
                f"Spark could not be started to answer: {_last_line(said) or _first_line(str(error))}"
            ) from error
    return session


@contextmanager
def _said_aside() -> Iterator[Path]:
    """What this process and Java, which inherits it, say to standard error goes into a file meanwhile.

    Java greets with warnings before any of its settings can keep it quiet.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.NamedTemporaryFile(prefix="headgate-spark-", suffix=".log") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield Path(file.name)
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
