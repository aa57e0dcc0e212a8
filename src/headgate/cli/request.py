"""``headgate request``: one question over data that ends, planned, run and answered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from headgate.api import App
from headgate.cli.control import show_answer
from headgate.connectors.python import to_function
from headgate.errors import PipelineError
from headgate.scheduling import policies

REQUEST = "request"


def request(
    sparql: Annotated[str, typer.Argument(help="A SELECT in SPARQL, or a file that holds one.")],
    data: Annotated[Path, typer.Option(help="A folder of triples: `headgate generate sp2bench DIR`.")],
    engine: Annotated[str, typer.Option(help="Where it runs: threads, simulated or spark.")] = "threads",
    policy: Annotated[str, typer.Option(help="Which policy schedules; see `headgate policies`.")] = "las",
    workers: Annotated[int | None, typer.Option(help="How many workers; all cores by default.")] = None,
    show: Annotated[bool, typer.Option("--show", help="The plan as a picture in Mermaid.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="All rows, as CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All rows, as a list of JSON objects.")] = False,
) -> None:
    """Answer one question over triples: a plan of scans, joins and sorts under a policy of your choice.

    Example: `headgate request "SELECT ?s ?o WHERE { ?s <http://purl.org/dc/terms/partOf> ?o } LIMIT 5"
    --data data/sp2bench`
    """
    if as_csv and as_json:
        raise PipelineError("request: choose one of --csv and --json.")
    file = Path(sparql) if len(sparql) < 256 else None
    if file is not None and file.suffix and "{" not in sparql and not file.is_file():
        raise PipelineError(f"request: there is no file '{sparql}', and it is no SPARQL either.")
    text = file.read_text(encoding="utf-8") if file is not None and file.is_file() else sparql
    app, found = App(REQUEST), list[pa.RecordBatch]()
    stream = app.sparql(text, data)
    stream.to(REQUEST, to_function(lambda query, batch: found.append(batch)))
    if show:
        sys.stdout.write(app.to_mermaid() + "\n")
        return
    app.run(engine, policies.get(policy), workers)
    show_answer(pa.Table.from_batches(found, schema=stream.schema), as_csv, as_json)
