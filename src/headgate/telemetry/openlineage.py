"""OpenLineage events: which sources each query read, what it wrote, and how it ended (openlineage.io, 2-0-2).

Every query is a job with a run of its own, since lineage goes from a query's sources to its sink.  All of
them name the application's run as their parent.
"""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.connectors.files import FileSource
from headgate.connectors.kafka import KafkaSource
from headgate.connectors.kafka_sink import KafkaSink
from headgate.connectors.parquet import ParquetSink
from headgate.errors import PipelineError
from headgate.graph.network import Network, Output
from headgate.runtime.instructions import Instruction
from headgate.runtime.report import Report
from headgate.runtime.stimuli import Asked, Stimulus
from headgate.telemetry.telling import Telling

PRODUCER = "https://pypi.org/project/headgate"
SPEC = "https://openlineage.io/spec"
EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
SLOW = 5.0
"""Seconds to wait for a server's answer."""


class Lineage:
    """``app.run(telemetry=[hg.lineage("lineage.jsonl")])``: a file of events, or a server's URL."""

    def __init__(self, to: str | Path, *, namespace: str = "headgate") -> None:
        self._to, self._namespace = str(to), namespace
        self._remote = self._to.startswith(("http://", "https://"))
        if not self._remote and not Path(self._to).absolute().parent.is_dir():
            raise PipelineError(f"lineage({self._to!r}): there is no folder {Path(self._to).parent}.")
        self._parent = str(uuid.uuid4())
        self._runs: dict[str, str] = {}
        """By query, its run."""
        self._events: dict[str, dict[str, Any]] = {}
        self._core: Any = None
        self._telling: Telling | None = None

    def begin(self, core: Any) -> None:
        """This network runs from now on."""
        if self._telling is None:
            self._telling = Telling("lineage events", self._send)
        self._core = core
        core.observers.add(self)
        self._joined(core.network)

    def __call__(self, stimulus: Stimulus, instructions: Sequence[Instruction], now: float) -> None:
        if isinstance(stimulus, Asked) and stimulus.outputs:
            self._joined(self._core.network)

    def _joined(self, network: Network) -> None:
        assert self._telling is not None
        for output in network.outputs:
            if output.name not in self._runs:
                self._runs[output.name] = str(uuid.uuid4())
                self._events[output.name] = self._event(network, output)
                self._telling.tell(self._events[output.name] | _now("START"))

    def _event(self, network: Network, output: Output) -> dict[str, Any]:
        parent = {
            "run": {"runId": self._parent},
            "job": {"namespace": self._namespace, "name": network.name},
        }
        sources = sorted(network.sources_of(output.port), key=lambda source: source.name)
        return {
            "run": {
                "runId": self._runs[output.name],
                "facets": {"parent": _facet("ParentRunFacet", "1-0-1", parent)},
            },
            "job": {"namespace": self._namespace, "name": f"{network.name}.{output.name}"},
            "inputs": [
                self._dataset(f"{network.name}.{source.name}", source.origin, source.schema)
                for source in sources
            ],
            "outputs": [self._dataset(f"{network.name}.{output.name}", output.sink, output.schema)],
            "producer": PRODUCER,
            "schemaURL": EVENT,
        }

    def _dataset(self, name: str, connector: Any, schema: pa.Schema) -> dict[str, Any]:
        """By OpenLineage's naming where it has one; else our own names."""
        namespace = self._namespace
        if isinstance(connector, KafkaSource | KafkaSink):
            namespace, name = f"kafka://{connector.servers.partition(',')[0]}", connector.topic
        elif isinstance(connector, FileSource | ParquetSink):
            namespace, name = "file", str(Path(connector.path).absolute())
        fields = [{"name": field.name, "type": str(field.type)} for field in schema]
        facet = _facet("SchemaDatasetFacet", "1-1-1", {"fields": fields})
        return {"namespace": namespace, "name": name, "facets": {"schema": facet}}

    def end(self, report: Report | None) -> None:
        """The run is over; without a report it failed."""
        if self._telling is None:
            return
        for name, event in self._events.items():
            query = None if report is None else report.queries.get(name)
            error = None if query is None else query.error
            done = event | _now("FAIL" if query is None or error is not None else "COMPLETE")
            if query is not None:
                count = {"rowCount": query.tuples_out}
                facet = _facet("OutputStatisticsOutputDatasetFacet", "1-0-2", count)
                done["outputs"] = [done["outputs"][0] | {"outputFacets": {"outputStatistics": facet}}]
            if error is not None:
                told = {"message": str(error), "programmingLanguage": "Python"}
                facets = event["run"]["facets"] | {
                    "errorMessage": _facet("ErrorMessageRunFacet", "1-0-1", told)
                }
                done["run"] = event["run"] | {"facets": facets}
            self._telling.tell(done)
        self._telling.end(report)

    def _send(self, event: dict[str, Any]) -> None:
        text = json.dumps(event)
        if not self._remote:
            with open(self._to, "a", encoding="utf-8") as file:
                file.write(text + "\n")
            return
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._to, text.encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=SLOW):
            pass


def _now(kind: str) -> dict[str, str]:
    return {"eventType": kind, "eventTime": datetime.now(UTC).isoformat()}


def _facet(name: str, version: str, what: dict[str, Any]) -> dict[str, Any]:
    url = f"{SPEC}/facets/{version}/{name}.json#/$defs/{name}"
    return {"_producer": PRODUCER, "_schemaURL": url, **what}


def lineage(to: str | Path, *, namespace: str = "headgate") -> Lineage:
    """OpenLineage events of a run: ``app.run(telemetry=[hg.lineage("http://marquez:5000/api/v1/lineage")])``.

    ``to``: a URL that takes them, or a file, to which each is added as a line of JSON.
    """
    return Lineage(to, namespace=namespace)
