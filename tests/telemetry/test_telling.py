"""OpenTelemetry spans and OpenLineage events, against the real SDK and the published specification."""

from __future__ import annotations

import json
import threading
import uuid
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import headgate as hg
from headgate.errors import PipelineError
from headgate.telemetry.telling import Telling


def shop(out: Path) -> hg.App:
    """A query that writes Parquet, and one that fails."""
    app = hg.App("shop")
    rows = app.source("rows", hg.from_rate(1_000, limit=200))
    rows.filter("value % 2 = 0", name="even").to("even", hg.to_parquet(str(out)))
    rows.filter("1 / (value - 100) < 2", name="bad").to("bad", hg.to_list([]))
    return app


def exporter() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, spans = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider, spans


def test_calls_are_spans_below_the_span_of_the_run(tmp_path: Path) -> None:
    provider, spans = exporter()
    report = shop(tmp_path / "even").run("threads", "mc", 1, telemetry=[hg.traces(provider, calls=10_000)])
    *calls, run = spans.get_finished_spans()
    assert (run.name, run.attributes["headgate.app"]) == ("headgate.run", "shop")
    assert (run.attributes["headgate.policy"], run.attributes["headgate.workers"]) == ("mc", 1)
    assert {span.parent.span_id for span in calls} == {run.context.span_id}
    assert sum(len(span.attributes["headgate.boxes"]) for span in calls) == len(report.trace)
    assert sum(span.attributes["headgate.tuples_in"] for span in calls) >= 200
    for span in calls:
        assert run.start_time <= span.start_time <= span.end_time <= run.end_time
        assert span.name == f"call {span.attributes['headgate.boxes'][0]}"
    # A failure is seen: in the call, and in the run with the query's name.
    failed = [span for span in calls if span.status.status_code is StatusCode.ERROR]
    assert [span.attributes["headgate.boxes"][-1] for span in failed] == ["bad"]
    assert run.status.status_code is StatusCode.ERROR
    assert [event.attributes["headgate.query"] for event in run.events] == ["bad"]


def test_spans_of_calls_are_bounded() -> None:
    provider, spans = exporter()
    app = hg.App("many")
    rows = app.source("rows", hg.from_rate(50, limit=100))
    rows.universal(cost=0.001).to("all", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1), "mc", telemetry=[hg.traces(provider, calls=3)])
    *calls, run = spans.get_finished_spans()
    assert len(calls) == 3 * 2  # a hundred calls in two seconds
    assert run.attributes["headgate.calls_without_span"] == len(report.trace) - len(calls)
    with pytest.raises(PipelineError, match="0 or more"):
        hg.traces(provider, calls=-1)


REQUIRED = {"run": {"runId"}, "job": {"namespace", "name"}}
"""The specification's, beside those of the event itself."""


def check(event: dict[str, Any]) -> None:
    """What OpenLineage's JSON schema (RunEvent, 2-0-2) requires."""
    assert {"eventTime", "producer", "schemaURL", "run", "job"} <= event.keys()
    assert event["eventType"] in ("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER")
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    for part, names in REQUIRED.items():
        assert names <= event[part].keys()
    uuid.UUID(event["run"]["runId"])
    facets = [*event["run"]["facets"].values()]
    for dataset in [*event["inputs"], *event["outputs"]]:
        assert {"namespace", "name"} <= dataset.keys()
        facets += [*dataset.get("facets", {}).values(), *dataset.get("outputFacets", {}).values()]
    for facet in facets:
        assert {"_producer", "_schemaURL"} <= facet.keys()
    parent = event["run"]["facets"]["parent"]
    assert {"runId"} <= parent["run"].keys()
    assert {"namespace", "name"} <= parent["job"].keys()


def test_every_query_has_lineage_from_its_sources_to_its_sink(tmp_path: Path) -> None:
    path, out = tmp_path / "lineage.jsonl", tmp_path / "even"
    shop(out).run("threads", "mc", 1, telemetry=[hg.lineage(path)])
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        check(event)
    told = {(event["job"]["name"], event["eventType"]): event for event in events}
    assert len(told) == len(events) == 4
    begun, done = told["shop.even", "START"], told["shop.even", "COMPLETE"]
    assert begun["run"]["runId"] == done["run"]["runId"] != told["shop.bad", "START"]["run"]["runId"]
    assert [dataset["name"] for dataset in done["inputs"]] == ["shop.rows"]
    (written,) = done["outputs"]
    assert (written["namespace"], written["name"]) == ("file", str(out))
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 100
    assert written["facets"]["schema"]["fields"][0] == {"name": "value", "type": "int64"}
    error = told["shop.bad", "FAIL"]["run"]["facets"]["errorMessage"]
    assert "division by zero" in error["message"]
    with pytest.raises(PipelineError, match="no folder"):
        hg.lineage(tmp_path / "none" / "lineage.jsonl")


def test_a_query_that_joins_has_lineage(tmp_path: Path) -> None:
    path, app = tmp_path / "lineage.jsonl", hg.App("grows")
    rows = app.source("rows", hg.from_rate(100, limit=100))
    rows.to("first", hg.to_list([]))
    rows.filter("value > 3").to("later", hg.to_list([]))
    changes = [hg.Change(at=0.5, add="later")]
    app.run(hg.Simulated(workers=1), "mc", changes=changes, telemetry=[hg.lineage(path)])
    events = [json.loads(line) for line in path.read_text().splitlines()]
    told = [(event["job"]["name"], event["eventType"]) for event in events]
    assert sorted(told) == sorted(
        (f"grows.{q}", e) for q in ("first", "later") for e in ("START", "COMPLETE")
    )


@pytest.mark.usefixtures("sockets")
def test_events_go_to_a_server_and_one_that_is_away_does_not_hold_the_run_up(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/api/v1/lineage"
        report = shop(tmp_path / "one").run("threads", "mc", 1, telemetry=[hg.lineage(url)])
        server.shutdown()
    assert sorted(event["eventType"] for event in heard) == ["COMPLETE", "FAIL", "START", "START"]
    assert report.problems == []
    report = shop(tmp_path / "two").run("threads", "mc", 1, telemetry=[hg.lineage(url)])
    assert report.queries["even"].tuples_out == 100
    assert any("lineage" in problem and "refused" in problem for problem in report.problems)


def test_what_is_too_much_is_dropped_and_said() -> None:
    """The teller is held until the queue is full: the run goes on."""
    held, begun, told = threading.Event(), threading.Event(), []

    def tell(thing: int) -> None:
        begun.set()
        held.wait()
        told.append(thing)

    telling = Telling("things", tell)
    telling.tell(0)
    begun.wait()
    for thing in range(1, 10_003):
        telling.tell(thing)
    assert telling.dropped == 2
    held.set()
    telling.end(None)
    assert told == list(range(10_001))
