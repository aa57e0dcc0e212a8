"""Commands to a running application: ``status``, ``restart``, ``set``, ``add``, ``remove``, ``query``."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv as pc
import typer
from rich.table import Table

from headgate.checkpoint.names import labelled
from headgate.checkpoint.places import local_path
from headgate.cli.display import console, say, seconds, shown
from headgate.control.socket import NotRunning, call
from headgate.errors import PipelineError, SourceError, printable
from headgate.runtime.dead_letters import json_value

WATCH_EVERY = 2.0
"""Seconds between two looks of ``headgate status --watch``."""
SHOWN = 100
"""Rows of an answer that are shown as a table."""

AppName = Annotated[str | None, typer.Option("--app", help="Which application; the one running if only one.")]


def register(cli: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (status, restart, query, add, remove):
        cli.command()(command)
    cli.command("set")(set_something)


# --- status and restart ---------------------------------------------------------------------------------


def status(
    app: AppName = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 if a query has failed or waits for a silent source.")
    ] = False,
) -> None:
    """Show a running application's queries: what they did, how late they are, and what failed.

    The last minute comes first, then everything since the start.

    Example: `headgate status --app shop --watch`
    """
    answer = call(app, "status")
    while watch:
        if not as_json:
            console.clear()
        _show_status(answer, as_json)
        try:
            time.sleep(WATCH_EVERY)
            answer = call(app, "status")
        except KeyboardInterrupt:
            return
        except NotRunning:
            say("The run is over.")
            return
    _show_status(answer, as_json)
    if check and any(one["state"] in ("failed", "waiting") for one in answer["queries"]):
        raise typer.Exit(1)


def _show_status(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    console.print(_status_table(answer))
    for one in answer["queries"]:
        if one["error"] is not None:
            say(
                f"[red]Query '{shown(one['name'])}' {shown(one['state'])}:[/] {shown(one['error'])}",
            )
        elif one.get("waits_for") is not None:
            say(
                f"[yellow]Query '{shown(one['name'])}' waits for[/] {shown(one['waits_for'])}",
            )
    for problem in answer.get("problems", ()):
        say(f"[yellow]{shown(problem)}[/]")
    failed = [one["name"] for one in answer["queries"] if one["state"] == "failed"]
    if failed:
        say(
            f"Restart one from its last commit with: headgate restart '{shown(failed[0])}'",
        )


_COLORS = {"running": "green", "waiting": "yellow", "failed": "red", "finished": "blue"}


def _status_table(answer: dict[str, Any]) -> Table:
    title = (
        f"{answer['app']}: {answer['engine']}, policy {answer['policy']}, {answer['workers']} workers, "
        f"running for {seconds(float(answer['seconds']))}"
    )
    if answer.get("step") is not None:
        title += f", step {answer['step']}"
    table = Table(title=shown(title), title_justify="left")
    table.add_column("query", overflow="fold")
    table.add_column("state", no_wrap=True)
    minute = [f"{name}\nlast min" for name in ("results", "p50", "p99", "utility", "past goal")]
    for name in (*minute, "backlog", "tuples in", "results", "p50", "p99", "QoS", "utility", "late", "shed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("restarts", justify="right", no_wrap=True)
    for one in answer["queries"]:
        color = _COLORS.get(one["state"], "default")
        last = one.get("minute") or {}
        table.add_row(
            shown(one["name"]),
            f"[{color}]{shown(one['state'])}[/]",
            _number(last.get("rows")),
            _duration(last.get("p50")),
            _duration(last.get("p99")),
            _share(last.get("utility")),
            _number(last.get("late")),
            _number(one["backlog"]),
            _number(one["tuples_in"]),
            _number(one["tuples_out"]),
            _duration(one["p50"]),
            _duration(one["p99"]),
            _share(one["qos"]),
            _share(one.get("utility")),
            _number(one.get("late")),
            _number(one.get("shed")),
            _number(one["restarts"]),
        )
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _duration(value: float | None) -> str:
    return "-" if value is None else seconds(float(value))


def restart(
    query: Annotated[str, typer.Argument(help="The query's name; see `headgate status`.")],
    app: AppName = None,
) -> None:
    """Restart a query that failed, from its last commit.

    Example: `headgate restart abandoned --app shop`
    """
    answer = call(app, "restart", query=query)
    how = (
        "is running again."
        if answer.get("went_on", True)
        else "was restarted. It has committed nothing since; `headgate status` shows how it goes on."
    )
    say(f"Query '{shown(answer.get('query', query))}' {how}")


# --- set ------------------------------------------------------------------------------------------------


def set_something(
    what: Annotated[str, typer.Argument(help="policy, period, batch, workers, qos, add or remove.")],
    value: Annotated[
        str,
        typer.Argument(
            help="A policy's name; a time such as 50ms; a number of tuples or of workers; a QoS graph as "
            "carts=0:1,0.5:1,5:0; to add, a Python file with an application; to remove, a query."
        ),
    ],
    app: AppName = None,
) -> None:
    """Change a running application while tuples flow: its policy, its workers, its queries.

    Period and batch are settings of the policy. A file's queries that are not running yet are added.

    Example: `headgate set policy multi_class --app shop`, then `headgate set period 50ms`
    """
    if what == "add":
        value = str(Path(value).resolve())
    answer = call(app, "set", what=what, value=value)
    done = answer["value"]
    new = ", ".join(map(str, done)) if isinstance(done, list) else done if what != "period" else value
    past = {"add": "Added", "remove": "Removed"}.get(what, f"Set {what} to")
    say(
        f"{past} {shown(new)}: policy {shown(answer['policy'])}, {shown(answer['workers'])} workers.",
    )


# --- add and remove -------------------------------------------------------------------------------------


def add(
    sql: Annotated[str, typer.Argument(help="One SELECT over the application's sources and views.")],
    name: Annotated[str, typer.Option(help="The query's name.")],
    to: Annotated[
        str,
        typer.Option(
            help="Where results go: a folder for Parquet files, 'console' (the application's), "
            "'kafka://server:9092/topic' or 'table:shop.alerts'."
        ),
    ] = "console",
    goal: Annotated[str | None, typer.Option(help="How late a result may be, such as '500 ms'.")] = None,
    query_class: Annotated[int, typer.Option("--class", help="Higher goes first under multi_class.")] = 0,
    keep: Annotated[str | None, typer.Option(help="Spark: keep results for `headgate query`.")] = None,
    start: Annotated[
        str, typer.Option(help="Spark: 'earliest', 'now', or a tuple's number; on threads: the next tuple.")
    ] = "now",
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Add nothing: say whether all goals would be kept, and exit with 1 if not."
        ),
    ] = False,
    app: AppName = None,
) -> None:
    """Add a continuous query in SQL to a running application.

    With --check a short simulation with the measured costs and rates says whose goal would break first.

    Example: `headgate add "SELECT * FROM sales WHERE price > 100" --name big --goal "500 ms" --to out/big`
    """
    folder = to != "console" and not to.startswith(("kafka://", "table:"))
    if folder:  # of where the command is given, not of where the application runs
        to = os.path.abspath(local_path(to.removeprefix("parquet:"), f"query '{name}': --to", PipelineError))
    given = {"sql": sql, "name": name, "to": to, "goal": goal, "class": query_class, "keep": keep}
    answer = call(app, "add", **given, start=start, check=check)
    if check:
        say(shown(answer["says"]))
        if not answer["fits"]:
            raise typer.Exit(1)
        return
    say(f"Added {shown(name)}.")


def remove(
    query: Annotated[str, typer.Argument(help="The query's name; see `headgate status`.")],
    app: AppName = None,
) -> None:
    """Remove a query from a running application; its results stay.

    Example: `headgate remove big --app shop`
    """
    call(app, "set", what="remove", value=query)
    say(f"Removed {shown(query)}.")


# --- query ----------------------------------------------------------------------------------------------


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT; each query with keep= is a table of its name.")],
    app: AppName = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Read an application's checkpoint; it need not be running.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="All rows, as CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All rows, as a list of JSON objects.")] = False,
) -> None:
    """Ask the kept history of an application's queries in Spark SQL, while it runs or later.

    Example: `headgate query "SELECT user_id, pages FROM abandoned ORDER BY pages DESC" --app shop`
    """
    if as_csv and as_json:
        raise PipelineError("query: choose one of --csv and --json.")
    outputs = _running_outputs(app) if checkpoint is None else _checkpoint_outputs(checkpoint)
    # Importing pyspark takes a moment that no other command should wait for.
    from headgate.engines.spark.history import ask

    views = {one["query"]: one["path"] for one in outputs}
    schemas = {one["query"]: one["schema"] for one in outputs if one.get("schema")}
    everything = as_csv or as_json
    show_answer(ask(views, sql, schemas=schemas, limit=None if everything else SHOWN + 1), as_csv, as_json)


def show_answer(answer: pa.Table, as_csv: bool, as_json: bool) -> None:
    """Print an answer as a table, or all of it for a program."""
    if as_csv:
        typer.echo(_safe(_csv(answer)), nl=False)
    elif as_json:
        typer.echo(_safe(json.dumps(json_value(answer.to_pylist()), ensure_ascii=False)))
    else:
        _print_table(answer)


def _running_outputs(app: str | None) -> list[dict[str, Any]]:
    try:
        answer = call(app, "history")
    except NotRunning as error:
        raise NotRunning(
            f"{error} What a stopped application has kept can be read with --checkpoint PATH."
        ) from error
    outputs: list[dict[str, Any]] = answer["outputs"]
    if not outputs:
        raise PipelineError(
            'The application keeps no history; give a query some with stream.to(…, keep="7 days").'
        )
    return outputs


def _checkpoint_outputs(checkpoint: Path) -> list[dict[str, Any]]:
    history = checkpoint / "history"
    folders = sorted(path for path in history.glob("*") if path.is_dir()) if history.is_dir() else []
    if not folders:
        raise SourceError(
            f"There is no kept history in {checkpoint}; give the folder that the application was given as "
            'checkpoint=, and queries that keep theirs with keep="7 days".'
        )
    return [{"query": labelled(path), "path": str(path)} for path in folders]


def _safe(text: str) -> str:
    """Rows as they are for a program or a file; a terminal gets nothing that it would obey."""
    return printable(text) if sys.stdout.isatty() else text


def _print_table(answer: pa.Table) -> None:
    table = Table()
    for field in answer.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        right = number or pa.types.is_decimal(field.type)
        table.add_column(shown(field.name), justify="right" if right else "left", overflow="fold")
    columns = [column.to_pylist() for column in answer.slice(0, SHOWN).columns]
    for values in zip(*columns, strict=True):
        table.add_row(*("" if value is None else shown(_cell(value)) for value in values))
    console.print(table)
    if answer.num_rows > SHOWN:
        console.print(f"The first {SHOWN} rows; --csv and --json give all of them.", highlight=False)


def _cell(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(json_value(value), ensure_ascii=False)
    return str(value)


def _csv(answer: pa.Table) -> str:
    """Arrow's CSV, with lists and structures as JSON."""
    columns = [
        pa.array([None if v is None else json.dumps(json_value(v)) for v in column.to_pylist()], pa.string())
        if pa.types.is_nested(column.type)
        else column
        for column in answer.columns
    ]
    flat = pa.Table.from_arrays(columns, names=answer.column_names)
    out = io.BytesIO()
    pc.write_csv(flat, out)
    return out.getvalue().decode()
