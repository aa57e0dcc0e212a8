"""Spark's analyser for the plans of Spark Connect's clients, in a Java of this process's own.

A client of Connect has its plan as the messages that it would send: no name in it is resolved.  Spark's own
planner makes a plan of Catalyst from such messages and needs no server for that, only its classes, which
PySpark ships.  So a plan is analysed here as the server would: no job runs, and the server is asked for
nothing but its settings.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.connectors import json_decode, maven
from headgate.engines.spark.class_archive import java_options
from headgate.engines.spark.java import SMALL
from headgate.engines.spark.plans import arrow_schema
from headgate.errors import PipelineError
from headgate.graph.schema import normalise

_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
"""What decides the meaning of a plan, and is taken from the client's session."""


class Analyst:
    """A local session of Spark for plans alone."""

    def __init__(self, jars: str) -> None:
        options = {
            "spark.master": "local[1]",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        if jars:
            options["spark.jars"] = jars
        gateway = _launch({**options, "spark.driver.extraJavaOptions": SMALL + java_options()})
        atexit.register(_close, gateway)
        self.client = gateway._gateway_client
        self._jvm = gateway.jvm
        self._sql = self._jvm.org.apache.spark.sql
        builder = self._sql.classic.SparkSession.builder()
        for key, value in options.items():
            builder = builder.config(key, value)
        self._session = builder.getOrCreate()
        self._session.sparkContext().setLogLevel("ERROR")

    def analyzed(self, message: bytes, settings: Mapping[str, str]) -> Any:
        """The analysed plan of a relation, as Connect's clients send it."""
        from py4j.protocol import Py4JJavaError

        for key, value in settings.items():
            self._session.conf().set(key, value)
        relation = self._jvm.org.apache.spark.connect.proto.Relation.parseFrom(message)
        connect = self._sql.connect
        holder = connect.service.SessionHolder("headgate", str(uuid.uuid4()), self._session)
        planner = connect.planner.SparkConnectPlanner(holder, self._jvm.scala.Option.empty())
        try:
            return self.frame(planner.transformRelation(relation)).queryExecution().analyzed()
        except Py4JJavaError as error:
            why = str(error.java_exception.getMessage()).splitlines()[0]
            raise PipelineError(
                f"from_spark: Spark cannot analyse this plan without its server: {why} Views and tables that "
                "only the server knows cannot be read; use the DataFrame that the view was made of."
            ) from error

    def frame(self, plan: Any) -> Any:
        """A plan as a DataFrame of the JVM."""
        return _frame(self._jvm, self._session, plan)

    def rows(self, plan: Any) -> pa.Table:
        """The rows of a plan that is no stream; they are few, as a table is that a stream is joined with."""
        frame = self.frame(plan)
        lines = pa.array(list(frame.toJSON().collectAsList()), pa.string())
        schema = normalise(arrow_schema(frame.schema()))
        return pa.Table.from_batches([json_decode.decode(lines, schema)])


def _close(gateway: Any) -> None:
    """Let the Java end with the program."""
    gateway.shutdown()
    gateway.proc.stdin.close()


def analyzed(dataframe: Any) -> Any:
    """The analysed plan of a DataFrame of a Connect session."""
    client = dataframe.sparkSession.client
    relation = dataframe._plan.plan(client)
    message = relation.SerializeToString()
    settings = {key: dataframe.sparkSession.conf.get(key) for key in _SETTINGS}
    jars = ",".join(maven.jars("spark-kafka")) if b"kafka" in message else ""
    if jars not in _ANALYSTS:
        _ANALYSTS[jars] = Analyst(jars)
    return _ANALYSTS[jars].analyzed(message, settings)


def dataframe_of(writer: Any) -> Any:
    """The DataFrame that a writer of a Connect session writes."""
    from pyspark.sql.connect.dataframe import DataFrame

    return DataFrame(writer._write_stream._child, writer._session)


def unpickled(command: bytes) -> Any:
    """What a client of Connect has pickled for its server."""
    from pyspark.serializers import CloudPickleSerializer

    return CloudPickleSerializer().loads(command)


def rows_of(plan: Any) -> pa.Table:
    """The rows of an analysed plan that is no stream."""
    from pyspark.sql import DataFrame, SparkSession

    for analyst in _ANALYSTS.values():
        if analyst.client is plan._gateway_client:
            return analyst.rows(plan)
    session = SparkSession.active()
    return DataFrame(_frame(session._jvm, session._jsparkSession, plan), session).toArrow()


def _frame(jvm: Any, session: Any, plan: Any) -> Any:
    datasets = getattr(jvm, "org.apache.spark.sql.classic.Dataset$")
    return getattr(datasets, "MODULE$").ofRows(session, plan)


_ANALYSTS: dict[str, Analyst] = {}
"""By the jars that they have: there is another one for plans that need Kafka's connector."""


def _launch(options: Mapping[str, str]) -> Any:
    """A Java with Spark's classes, and the way to talk to it.

    PySpark's own ``launch_gateway`` forks to have the child ignore Ctrl-C.  A fork copies the locks of gRPC's
    threads, which a client of Connect has, and the child can die of that before it is Java.  A session of its
    own keeps Ctrl-C away without Python code in the child, so nothing is forked.
    """
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
    from pyspark.serializers import UTF8Deserializer, read_int

    given = [part for key, value in options.items() for part in ("--conf", f"{key}={value}")]
    submit = maven.spark_home() / "bin" / "spark-submit"
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "connection"
        environment = {name: value for name, value in os.environ.items() if name not in _REMOTE} | {
            "SPARK_CONNECT_MODE": "0",
            "PYSPARK_PIN_THREAD": "true",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
        }
        # Java ends when its standard input does.
        process = subprocess.Popen(
            [submit, *given, "pyspark-shell"],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        while process.poll() is None and not told.exists():
            time.sleep(0.05)
        if not told.exists():
            raise PipelineError(
                f"from_spark: Java ended with code {process.returncode} before it could analyse the plan; "
                "what it printed says why."
            )
        with told.open("rb") as info:
            port, secret = read_int(info), UTF8Deserializer().loads(info)
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    gateway.proc = process
    return gateway


_REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
"""PySpark notes in the environment that it is a client of Connect; Java would take that for itself."""
