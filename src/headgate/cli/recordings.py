"""``headgate replay`` and ``headgate advise``: what a recorded run would have done otherwise."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headgate.cli.checkout import load_app
from headgate.cli.display import console, query_table, rate, say, seconds, shown, summary, titled
from headgate.errors import PipelineError
from headgate.recording.advising import MOST, Advice, Tried
from headgate.recording.advising import advise as search
from headgate.recording.recorder import measured
from headgate.recording.replaying import Compared, Replayable, compared

recordings = typer.Typer()
RecordingFile = Annotated[Path, typer.Argument(help="A file that `headgate run --record FILE` wrote.")]


@recordings.command("replay")
def replay(
    file: RecordingFile,
    policy: Annotated[
        str | None, typer.Option(help="Another policy, also with options: 'mc(train=64)'.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Another number of workers.")] = None,
    machine: Annotated[
        str | None, typer.Option("--topology", help="Another machine; see `headgate topology`.")
    ] = None,
    packet_rows: Annotated[int | None, typer.Option(help="Other packets: their rows.")] = None,
    train: Annotated[int | None, typer.Option(help="Tuples of a call, if the policy takes a train.")] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Predict the recorded run itself, and compare with what it measured."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Predict a recorded run under another policy, with other workers, or on another machine.

    It needs neither the application nor its data: the real policy runs in virtual time over the recorded
    arrivals and costs.

    Example: `headgate replay shop.hgr --policy qos --workers 4`
    """
    recorded = Replayable(file)
    if check:
        if (policy, workers, machine, packet_rows, train) != (None,) * 5:
            raise PipelineError("--check predicts the run as it was recorded: give no other setting with it.")
        if recorded.measured is None:
            raise PipelineError(
                f"The run in '{file}' was killed before it could report: there is nothing to check against."
            )
    report = recorded.run(policy, workers, topology=machine, packet_rows=packet_rows, train=train)
    predicted = measured(report)
    table = compared(predicted, recorded.measured) if check and recorded.measured else []
    if as_json:
        told = predicted | {"queued_bytes": report.queued_bytes}
        if check:
            told["check"] = [vars(one) | {"error": one.error} for one in table]
        typer.echo(json.dumps(told, indent=2))
        return
    if check:
        console.print(_checked(table))
        return
    console.print(query_table(report, f"{recorded.about['app']}, predicted"))
    console.print(summary(report))
    say(f"At most {report.queued_bytes / 1e6:.1f} MB waited in queues.")
    for problem in report.problems:
        say(f"[yellow]{shown(problem)}[/]")


def _checked(table: list[Compared]) -> Any:
    made = titled("predicted and measured", "query", "figure", right=("predicted", "measured", "error"))
    for one in table:
        figure = {"utility": lambda v: f"{v:.3f}", "tuples_out": lambda v: f"{v:,}", "throughput": rate}
        spell = figure.get(one.what, seconds)
        error = (
            "-"
            if one.error is None
            else f"{one.error:+.3f}"
            if one.what == "utility"
            else f"{one.error:+.0%}"
        )
        cells = ["-" if v is None else spell(v) for v in (one.predicted, one.measured)]
        made.add_row(shown(one.query), one.what, *cells, error)
    return made


@recordings.command("advise")
def advise(
    file: Annotated[
        Path, typer.Argument(help="A recording, or an application, which then runs for a while.")
    ],
    replays: Annotated[int, typer.Option(min=2, help="At most so many replays.")] = MOST,
    engine: Annotated[
        str, typer.Option(help="For an application: where it runs to be recorded.")
    ] = "threads",
    run_for: Annotated[float, typer.Option("--seconds", help="For an application: how long.")] = 20.0,
    most_workers: Annotated[
        int | None, typer.Option(min=1, help="Try no more workers; by default the machine's cores.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Find the policy, workers, packets and trains that suit a recorded run, by replaying it.

    Example: `headgate advise shop.hgr`
    """
    with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
        recorded = file
        if file.suffix.lower() in (".py", ".sql"):
            recorded = Path(folder) / "run.hgr"
            say(f"Running {shown(file)} for at most {run_for:g} seconds to record it.")
            load_app(file).run(engine, until=run_for, record=recorded)
        with _progress(as_json) as tell:
            found = search(recorded, replays=replays, most_workers=most_workers, tell=tell)
    if as_json:
        typer.echo(json.dumps(_data(found), indent=2))
        return
    _show(found, file)


def _data(found: Advice) -> dict[str, Any]:
    def one(tried: Tried) -> dict[str, Any]:
        return {
            "options": tried.options,
            "gains": tried.gains,
            "predicted": measured(tried.report)["queries"],
        }

    return {"recorded": one(found.recorded), "best": [one(b) for b in found.best], "replays": found.replays}


def _show(found: Advice, file: Path) -> None:
    base = found.recorded
    if not found.best:
        say(f"Nothing is to be gained: of {found.replays} replays none does better than {base.options}.")
        return
    table = titled(
        "predicted", "query", right=("as recorded", *[f"{place + 1}." for place in range(len(found.best))])
    )
    for name, own in base.report.queries.items():
        cells = []
        for tried in found.best:
            after, gained = tried.report.queries[name], tried.gains.get(name, 0.0)
            cells.append(f"{_figures(after)} ({gained:+.2f})" if own.utility is not None else _figures(after))
        table.add_row(shown(name), _figures(own), *cells)
    console.print(table)
    for place, tried in enumerate(found.best):
        say(f"{place + 1}. headgate run APP {shown(tried.options)}")
    say(f"Found by {found.replays} replays of {shown(file)}. In parentheses: utility gained.")


def _figures(own: Any) -> str:
    late = seconds(own.latency.p99) if own.latency.count else "-"
    return f"p99 {late}" if own.utility is None else f"p99 {late}, utility {own.utility:.3f}"


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, part: progress.update(task, description=shown(what[:60]), completed=part)
