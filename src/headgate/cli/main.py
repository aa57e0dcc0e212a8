"""The commands.  Each one's help ends with an example."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

from headgate import __version__
from headgate.api import App
from headgate.api.loading import load_file
from headgate.cli import checkout
from headgate.cli import demo as shop_demo
from headgate.cli.calibrate import calibration
from headgate.cli.checkout import load_app
from headgate.cli.control import register
from headgate.cli.display import (
    console,
    details,
    errors,
    live_table,
    query_table,
    say,
    shown,
    summary,
    titled,
)
from headgate.cli.generate import generate
from headgate.cli.machine import draw
from headgate.cli.recordings import recordings
from headgate.cli.request import request
from headgate.cli.upgrades import ReplayQueries, ResetQueries, upgrades
from headgate.connectors import maven
from headgate.engines.base import Engine, Until
from headgate.engines.simulated import Simulated
from headgate.engines.spark import Spark, class_archive
from headgate.engines.threads import Threads
from headgate.errors import HeadgateError, PipelineError
from headgate.machine import host as machines
from headgate.machine.topology_format import spell
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy
from headgate.sql import described_functions
from headgate.telemetry.openlineage import lineage as lineage_to
from headgate.telemetry.spans import traces as traces_to

cli = typer.Typer(
    name="headgate",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headgate {__version__}")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run many continuous queries under one scheduler that decides what runs next."""


register(cli)
cli.command()(request)
cli.add_typer(generate)
cli.add_typer(calibration)
cli.add_typer(recordings)
upgrades(cli)

AppFile = Annotated[
    Path, typer.Argument(help="A Python file with 'app = hg.App(…)' or 'build()', or a file of SQL.")
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        help="Which policy schedules, also with options: 'mc(train=64)'; see `headgate policies`. "
        "By default qos if a query has a goal, else lp."
    ),
]
WorkerCount = Annotated[int | None, typer.Option(help="How many workers; all cores by default.")]
UntilText = Annotated[
    str, typer.Option(help="'drained', 'stopped' (by Ctrl-C or SIGTERM), or a number of seconds.")
]


def _until(text: str) -> Until:
    if text == "drained":
        return "drained"
    if text in ("stopped", "none"):
        return None
    try:
        return float(text)
    except ValueError:
        raise PipelineError(f"--until {text}: use 'drained', 'stopped' or a number of seconds.") from None


def _function(path: str, name: str) -> Any:
    """The function that a policy's text names, ``file.py:function``."""
    found = getattr(load_file(Path(path)), name, None)
    if not callable(found):
        raise PipelineError(f"--policy: {path} defines no function '{name}'.")
    return found


def _run(
    app: App,
    engine: str | Engine,
    named: str | Policy | None,
    workers: int | None,
    until: Until,
    page: bool | str = False,
    record: Path | None = None,
    admit: str = "all",
    telemetry: Sequence[Any] = (),
) -> Report:
    # Text stays text where that is enough: a recording can hold it.
    spelled = isinstance(named, str) and ".py:" in named
    policy = policies.spelled(str(named), _function) if spelled else named
    with _told_to_stop(), live_table(app.name) as progress:
        report = app.run(
            engine,
            policy,
            workers,
            until,
            progress=progress,
            page=page,
            record=record,
            admit=admit,
            telemetry=telemetry,
        )
    console.print(query_table(report, app.name))
    console.print(summary(report))
    for line in details(report):
        console.print(line, highlight=False)
    for query in report.queries.values():
        if query.error is not None:
            say(f"[red]Query '{shown(query.name)}' failed:[/] {shown(query.error)}", errors)
    for problem in report.problems:
        say(f"[yellow]{shown(problem)}[/]", errors)
    return report


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """Answer the first Ctrl-C or SIGTERM at once, since what is under way is finished first; obey the second.

    The second signal ends the process at once: the code that handles the first could catch an exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False

    def stop(number: int, frame: object) -> None:
        nonlocal told
        if told:
            if console.is_terminal:
                os.write(1, b"\x1b[?25h")  # the live table has hidden the cursor
            os._exit(130)
        told = True
        # Not by the console: the signal may have come in the middle of what it writes.
        os.write(2, b"Stopping; a second signal ends at once.\n")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@cli.command()
def run(
    app: AppFile,
    engine: Annotated[str, typer.Option(help="Where it runs: spark, threads or simulated.")] = "spark",
    policy: PolicyName = None,
    workers: WorkerCount = None,
    until: UntilText = "drained",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Spark: a folder, or s3://bucket/name, from which a later run goes on where this one stops."
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Spark: take the checkpoint also from a run that is alive."),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(help="Spark: local[*] if none is given, spark://host:port or sc://host:port."),
    ] = None,
    packet_rows: Annotated[
        str | None, typer.Option(help="Threads: rows of a packet, or 'auto', which finds the best size.")
    ] = None,
    allocator: Annotated[
        str | None, typer.Option(help="Threads: where packets' memory is from, 'local' or a pool of Arrow's.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            help="Threads: seconds that calls and sinks have to come back at the end; 5 by default."
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page on which the run is seen and changed.")
    ] = False,
    page_at: Annotated[
        str | None,
        typer.Option(help="Where: a port, or host:port with HEADGATE_TOKEN set; a free port on loopback."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write a recording there, for `headgate replay` and `headgate advise`."),
    ] = None,
    admit: Annotated[
        str, typer.Option(help="'goals': refuse queries that join if that would break a goal; 'all'.")
    ] = "all",
    reset: ResetQueries = None,
    replay: ReplayQueries = None,
    from_savepoint: Annotated[
        str | None,
        typer.Option(help="Spark: begin the new --checkpoint from this folder of `headgate savepoint`."),
    ] = None,
    lineage: Annotated[
        str | None, typer.Option(help="Add OpenLineage events to this file, or send them to this URL.")
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces", help="OpenTelemetry spans, to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
    ] = False,
) -> None:
    """Run an application.

    Exit codes: 0 if all is well, also after Ctrl-C or SIGTERM; 1 if a query failed, waited at the end for a
    source that did not answer, or nothing could be run; 130 if a second Ctrl-C or SIGTERM ended it at once.

    A policy's options are in parentheses: `top_k(k=5)`, `mc(train=64)`, `mc(train=time(0.01))`, `tuned(qos)`,
    `shedding(qos, strategy=semantic)`; `haren(prioritize=mine.py:cheapest, assign=mine.py:home)` takes its
    functions from a file.

    Example: `headgate run examples/tpcx_bb/q4.py --checkpoint state/q4 --page --policy 'mc(train=64)'`
    """
    rows = int(packet_rows) if packet_rows and packet_rows.isdigit() else packet_rows
    options: dict[str, dict[str, Any]] = {
        "spark": {
            "checkpoint": checkpoint,
            "master": master,
            "reset": reset,
            "replay": replay,
            "take_over": take_over or None,
            "savepoint": from_savepoint,
        },
        "threads": {"packet_rows": rows, "allocator": allocator, "grace": grace},
    }
    where = _page(page, page_at)
    chosen, ends = _engine(engine, options), _until(until)
    with _telemetry(lineage, traces) as telemetry:
        report = _run(load_app(app), chosen, policy, workers, ends, where, record, admit, telemetry)
    _exit(report)


@contextmanager
def _telemetry(to: str | None, traced: bool) -> Iterator[list[Any]]:
    """Who else hears of the run; spans go to a collector as OpenTelemetry's own variables say."""
    found: list[Any] = [] if to is None else [lineage_to(to)]
    if not traced:
        yield found
        return
    try:
        exporters = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise PipelineError(
            "--traces needs OpenTelemetry's exporter: pip install 'headgate[telemetry]'."
        ) from None
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporters.OTLPSpanExporter()))
    try:
        yield [*found, traces_to(provider)]
    finally:
        provider.shutdown()


def _page(page: bool, at: str | None) -> bool | str:
    if at is None:
        return page
    return f"127.0.0.1:{at}" if at.isdigit() else at


def _exit(report: Report) -> None:
    """The exit code tells the caller, a person or a service, whether all is well."""
    if any(query.error is not None or query.waits_for is not None for query in report.queries.values()):
        raise typer.Exit(1)


def _engine(engine: str, options: Mapping[str, Mapping[str, Any]]) -> str | Engine:
    """With the options that were given for it; one that was given for another is a mistake."""
    given = {name: {o: v for o, v in known.items() if v is not None} for name, known in options.items()}
    for name, known in given.items():
        if known and name != engine:
            option = next(iter(known)).replace("_", "-")
            raise PipelineError(f"--{option} is for the {name} engine, not for '{engine}'.")
    made: dict[str, type[Engine]] = {"spark": Spark, "threads": Threads}
    return made[engine](**given[engine]) if engine in made else engine


@cli.command()
def simulate(
    app: AppFile,
    policy: PolicyName = None,
    workers: WorkerCount = None,
    until: UntilText = "drained",
    call_overhead: Annotated[float, typer.Option(help="Seconds that every box call costs.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Fixes every random choice.")] = 0,
    machine: Annotated[
        str | None, typer.Option("--topology", help="On which machine; see `headgate topology`.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="What its memory costs: e5310, e7-4820, e7540, or a calibrated file.")
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="What operators cost: a file that `headgate calibrate` wrote.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write a recording there, which replays exactly.")
    ] = None,
) -> None:
    """Run an application in virtual time: real answers, exact times, any number of workers.

    Example: `headgate simulate examples/tpcx_bb/q4.py --workers 16 --call-overhead 0.00002`
    """
    engine = Simulated(topology=machine, memory=memory, call_overhead=call_overhead, seed=seed, costs=costs)
    _exit(_run(load_app(app), engine, policy, workers, _until(until), record=record))


@cli.command()
def show(
    app: AppFile,
    data: Annotated[bool, typer.Option("--data", help="As JSON instead of a Mermaid picture.")] = False,
) -> None:
    """Show an application's network of boxes and arrows.

    Example: `headgate show examples/tpcx_bb/all.py > network.mmd`
    """
    network = load_app(app).network
    sys.stdout.write(json.dumps(network.to_data(), indent=2) if data else network.to_mermaid())
    sys.stdout.write("\n")


@cli.command("functions")
def list_functions(
    pattern: Annotated[
        str, typer.Argument(help="Part of a name or of what it does, or a name with '*'.")
    ] = "",
) -> None:
    """List the functions of expressions, each with an example.

    Example: `headgate functions json`
    """
    found = described_functions(pattern)
    if not found:
        say(f"No function has '{shown(pattern)}' in its name or its description.", errors)
        raise typer.Exit(1)
    for one in found:
        way = "" if one.computed == "by arrays" else f" · {one.computed}"
        console.print(f"{one.signature}  ({one.kind}{way})", highlight=False, markup=False, style="bold")
        console.print(f"    {one.meaning}", highlight=False, markup=False)
        if one.example:
            console.print(f"    {one.example}", highlight=False, markup=False, style="dim")
    console.print(f"{len(found)} functions.", highlight=False)


@cli.command("policies")
def list_policies() -> None:
    """List the policies and what each is for.

    Example: `headgate policies`
    """
    table = titled(None, "policy", "or", "what it does")
    long = {short: name for name, short in policies.aliases().items()}
    for name in policies.names():
        shown = f"[bold]{name}[/]" if name in (policies.DEFAULT, policies.WITH_GOALS) else name
        table.add_row(shown, long.get(name, ""), policies.describe(name))
    console.print(table)
    console.print(
        f"The default is {policies.WITH_GOALS} if a query has a goal, else {policies.DEFAULT}. "
        "Options are in parentheses: `mc(train=64)`, `tuned(qos)`."
    )


@cli.command()
def topology(
    name: Annotated[str, typer.Argument(help="'host', one of the papers' machines, or a file.")] = "host",
    text: Annotated[bool, typer.Option("--text", help="As a description, to write into a file.")] = False,
) -> None:
    """Draw a machine: memory nodes, groups of cores that share a cache, caches and cores.

    Example: `headgate topology e7540`
    """
    found = machines.get(name)
    if text:
        sys.stdout.write(spell(found))
    else:
        console.print(draw(found))


@cli.command()
def prepare(
    kafka: Annotated[bool, typer.Option("--kafka", help="Also fetch Spark's connector for Kafka.")] = False,
) -> None:
    """Make Spark start faster on this machine: keep the Java classes that it loads in one file, made once.

    Example: `headgate prepare`
    """
    with console.status("Starting Spark once and keeping the classes that Java loads (half a minute) …"):
        found = class_archive.make()
    say(f"Spark's classes are in {found} ({found.stat().st_size / 1e6:.0f} MB); local sessions use them.")
    if kafka:
        with console.status("Fetching Spark's connector for Kafka …"):
            fetched = maven.jars("spark-kafka")
        say(f"Spark's connector for Kafka is there: {len(fetched)} jars.")


@cli.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    rate: Annotated[float, typer.Option(help="Rows a second.")] = 2_000.0,
    rush: Annotated[
        float | None,
        typer.Option(
            min=1, help="In the middle half, so many times as many rows; 1: no rush; by default too many."
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Then the small queries as plain Structured Streaming.")
    ] = False,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Let the rows come through a real Kafka broker.")
    ] = False,
    engine: Annotated[str, typer.Option(help="Where it runs: spark or threads.")] = "spark",
    policy: PolicyName = shop_demo.POLICY,
    workers: WorkerCount = None,
    page: Annotated[bool, typer.Option(help="Serve the page on which it is seen.")] = True,
    page_at: Annotated[str | None, typer.Option(help="Where: a port, or host:port.")] = None,
) -> None:
    """Run a live shop: five TPCx-BB queries and forty small ones over one stream, tight and loose.

    Open the page that it names: a rush comes, and then a policy that knows no goals takes over for a while.
    The page shows which queries meet their goals, and why others are late.

    Example: `headgate demo --seconds 30 --compare`
    """
    without_rush = 1.0 if kafka or compare else rush
    where = _page(page, page_at)
    shop_demo.demo(
        seconds,
        rate,
        compare,
        kafka,
        engine,
        policy or shop_demo.POLICY,
        workers,
        rush=without_rush,
        page=where,
    )


@cli.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which benchmarks; all if none is named.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller, for a first look.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results there.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of the input, where it can be chosen.")
    ] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Rounds, where they can be chosen.")] = None,
    part: Annotated[str | None, typer.Option(help="Only this part, where a benchmark has several.")] = None,
) -> None:
    """Measure, and compare with the claims; in a checkout, where the benchmarks are.

    Example: `headgate bench overhead --quick --json bench.json`
    """
    registry = checkout.benchmarks("registry")
    known: list[str] = list(registry.BENCHES)
    unknown = set(names or ()) - set(known)
    if unknown:
        raise PipelineError(f"There is no benchmark '{sorted(unknown)[0]}'. There are: {', '.join(known)}.")
    results = registry.run_benches(names or known, quick, console, rows=rows, repeat=repeat, part=part)
    table = Table(title="claims", title_justify="left")
    for column in ("name", "source", "claim", "measured", "baseline", "ratio", "holds"):
        table.add_column(column, justify="right" if column in ("measured", "baseline", "ratio") else "left")
    for result in results:
        table.add_row(*result.cells())
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps([result.to_data() for result in results], indent=2) + "\n")
        console.print(f"Written to {json_file}.")


def main() -> None:
    """Entry point: an error of the user's is one readable line, not a traceback; SIGTERM is as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cli()
    except HeadgateError as error:
        say(f"[bold red]{type(error).__name__}:[/] {shown(error)}", errors)
        _leave(1)
    except SystemExit as end:
        _leave(end.code)


def _leave(code: str | int | None) -> NoReturn:
    """End the process also if a run had to leave threads behind that hang.

    Python would take the interpreter down around them, and one inside Arrow may then bring all down.
    """
    hanging = [thread for thread in threading.enumerate() if thread.name.startswith("headgate-worker")]
    if hanging and (code is None or isinstance(code, int)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    raise SystemExit(code)
