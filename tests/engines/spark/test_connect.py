"""The same application on threads and on a Spark Connect server, whose Python lacks nothing but a context."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from servers import ConnectServer, drive

pytestmark = pytest.mark.xdist_group("servers")
APP = """
    import json, sys, threading
    import pyarrow as pa
    import headgate as hg

    url, folder = sys.argv[1:]
    batch = pa.RecordBatch.from_pydict({"user": [f"u{i % 7}" for i in range(3000)], "x": list(range(3000))})

    def shop():
        app, big, sums = hg.App("shop"), [], []
        clicks = app.source("clicks", hg.from_batches([batch.slice(at, 500) for at in range(0, 3000, 500)]))
        tens = pa.schema([("x", pa.int64()), ("ten", pa.int64())])
        clicks.filter("x % 3 = 0").flat_map_rows(
            lambda row: [{"x": row["x"], "ten": row["x"] * 10}], schema=tens).to("big", hg.to_list(big))
        clicks.key_by("user").running("sum(x) AS s").to("sums", hg.to_list(sums))
        return app, big, sums

    def answers(engine):
        app, big, sums = shop()
        report = app.run(engine)
        assert not any(query.error for query in report.queries.values())
        return big, sums

    wanted = answers("threads")
    from pyspark.sql.connect.client import SparkConnectClient
    tags = set()
    added = SparkConnectClient.add_tag
    SparkConnectClient.add_tag = lambda self, tag: (tags.add(tag), added(self, tag))[1]
    first = answers(hg.Spark(master=url)) == wanted
    # The second run finds the session that the first one made, and the package there.
    from headgate.engines.spark.session import existing, is_connect, is_local
    session = existing()
    second = answers(hg.Spark(session=session)) == wanted

    def where(batches):
        import importlib.util
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"package": [importlib.util.find_spec("headgate").origin]})
    package = session.range(0, 1, 1, 1).mapInArrow(where, "package string").collect()[0][0]

    # Sources and sinks that Spark's connectors read and write.
    session.range(0, 100).selectExpr("id", "concat('n', id) AS name").write.parquet(f"{folder}/in")
    app = hg.App("tables")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = hg.from_table({"format": "parquet", "options": {"path": f"{folder}/in"}}, "id", schema=schema,
                          follow=False)
    to = hg.to_table({"format": "parquet", "options": {"path": f"{folder}/out"}})
    app.source("in", table).filter("id % 2 = 0").to("even", to)
    app.run(hg.Spark(session=session))
    copied = session.read.parquet(f"{folder}/out").count()

    # Kafka's connector is not there.
    app = hg.App("kafka")
    app.source("in", hg.from_kafka("localhost:1", "t")).to("rows", hg.to_list([]))
    try:
        app.run(hg.Spark(session=session))
        kafka = ""
    except hg.HeadgateError as error:
        kafka = str(error)

    # What the application keeps is asked on the same session.
    app = hg.App("kept")
    app.source("in", hg.from_batches([batch])).filter("x < 10").to("small", hg.to_list([]), keep="1 hour")
    app.run(hg.Spark(session=session, checkpoint=f"{folder}/checkpoint"))
    from headgate.engines.spark.history import ask
    asked = ask({"small": f"{folder}/checkpoint/history/small"}, "SELECT sum(x) AS s FROM small").to_pylist()
    print(json.dumps({
        "first": first, "second": second, "connect": is_connect(session), "local": is_local(session),
        "package": package, "tags": sorted(tags), "copied": copied, "kafka": kafka, "asked": asked,
    }))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ConnectServer]:
    with ConnectServer() as made:
        yield made


def test_an_application_on_a_connect_server_gives_the_answers_of_threads(
    server: ConnectServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("connect")
    found = json.loads(drive(APP, server.url, str(folder)).splitlines()[-1])
    assert found["connect"]
    assert not found["local"]
    assert found["first"]
    assert found["second"]
    assert ".zip" in found["package"]
    assert any(tag.startswith("headgate shop step ") for tag in found["tags"]), found["tags"]
    assert found["copied"] == 50
    assert "Source 'in': the Spark session has no connector for Kafka" in found["kafka"]
    assert found["asked"] == [{"s": 45}]


OTHER_MASTERS = """
    import json, sys, warnings
    import pyarrow as pa
    import headgate as hg
    from pyspark.sql import SparkSession

    def run(engine):
        app, rows = hg.App("shop"), []
        batch = pa.RecordBatch.from_pydict({"x": [1, 2, 3]})
        app.source("in", hg.from_batches([batch])).to("r", hg.to_list(rows))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            app.run(engine)
        return [row["x"] for row in rows], [str(w.message) for w in caught if "master" in str(w.message)]

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    found = {"default": run("spark"), "other": run(hg.Spark(master="spark://localhost:1"))}
    found["same"] = run(hg.Spark(master="local[1]"))
    try:
        run(hg.Spark(master="sc://localhost:1"))
    except hg.HeadgateError as error:
        found["remote"] = str(error)
    session.stop()
    found["again"] = run(hg.Spark(master="local[2]", options={"spark.ui.enabled": "false"}))
    found["master"] = SparkSession.active().sparkContext.master
    print(json.dumps(found))
"""


@pytest.mark.faults
def test_a_process_has_one_spark_and_says_so_if_another_was_meant() -> None:
    found = json.loads(drive(OTHER_MASTERS).splitlines()[-1])
    for name in ("default", "other", "same", "again"):
        assert found[name][0] == [1, 2, 3]
    assert found["default"][1] == found["same"][1] == found["again"][1] == []
    (warning,) = found["other"][1]
    assert "Spark(master='spark://localhost:1') is not used" in warning
    assert "already has a Spark session on local[1]" in warning
    assert "cannot have one at a Connect server as well" in found["remote"]
    assert found["master"] == "local[2]"


PROGRAMS = """
    import json, sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    import headgate as hg
    import pyspark_programs as programs
    from headgate.errors import PipelineError
    from pyspark_compared import compare

    url, folder = sys.argv[1], Path(sys.argv[2])
    session = SparkSession.builder.remote(url).getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    programs.write_input(folder / "in")
    view, compared = "a_view_in_sql", ["tumbling_windows"]
    others = ["left_outer_join", "word_count", "join_with_a_table", "json_in_text"]
    app, verdicts = compare(session, folder / "in", compared, [*compared, *others])

    def error(make):
        try:
            make()
        except PipelineError as error:
            return str(error)

    frame = programs.devices_with_a_strong_signal(session, folder / "in")
    adopted = hg.App("adopted")
    writer = frame.writeStream.foreachBatch(lambda batch, number: print("rows", batch.count()))
    adopted.adopt(writer.trigger(availableNow=True), name="each")
    adopted.run("threads")
    print(json.dumps({
        "different": [v.program for v in verdicts if v.only_ours or v.only_theirs or not v.rows],
        "queries": len(app.network.outputs),
        "view": error(lambda: hg.from_spark(programs.APPEND[view](session, folder / "in"))),
        "pooled": error(lambda: hg.pooled(writer, goal="1 s")),
        "rows": frame.sparkSession.read.json(str(folder / "in" / "devices")).where("signal > 10").count(),
    }))
"""


def test_programs_of_a_connect_session_are_taken_over_from_the_clients_plan(
    server: ConnectServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("programs"))
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    *said, last = drive(PROGRAMS, server.url, folder, env=path).splitlines()
    found = json.loads(last)
    assert (found["different"], found["queries"]) == ([], 5)
    assert sum(int(line.split()[1]) for line in said if line.startswith("rows ")) == found["rows"] > 0
    assert "Views and tables that only the server knows cannot be read" in found["view"]
    assert "app.adopt(writer" in found["pooled"]
