"""Commands about what a checkpoint has: ``plan``, ``savepoint`` and ``state``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.checkpoint import savepoint as savepoints
from headgate.checkpoint.log import Log
from headgate.checkpoint.opening import open_storage
from headgate.checkpoint.owner import claim
from headgate.checkpoint.state_view import BoxState, states
from headgate.checkpoint.storage import Storage
from headgate.checkpoint.upgrade import Upgrade
from headgate.checkpoint.verdicts import REFUSED, Choices
from headgate.cli.checkout import load_app
from headgate.cli.control import AppName
from headgate.cli.display import console, say, shown, titled
from headgate.control.socket import call
from headgate.engines.spark.task import pipeline
from headgate.errors import PipelineError, RunError, SourceError, nearest
from headgate.runtime.dead_letters import json_value

ResetQueries = Annotated[
    list[str] | None,
    typer.Option(help="Spark: this query forgets its state and begins anew where it was; may be repeated."),
]
ReplayQueries = Annotated[
    list[str] | None,
    typer.Option(
        help="Spark: this query forgets its state and begins anew with the earliest row, so its results come "
        "again; may be repeated."
    ),
]
CheckpointFolder = Annotated[str, typer.Option("--checkpoint", help="The application's checkpoint.")]
_COLORS = {"goes on": "green", "begins": "blue", "leaves": "yellow", "refused": "red"}


def upgrades(cli: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (plan, savepoint, state):
        cli.command()(command)


def existing(folder: str) -> Storage:
    """The checkpoint in a folder; an error if there is none."""
    place = open_storage(folder)
    if not place.names("log") and not place.names("snapshots"):
        raise SourceError(f"There is no checkpoint in {folder}; give the folder that hg.Spark was given.")
    return place


def plan(
    app: Annotated[Path, typer.Argument(help="The new version of the application, a Python file or SQL.")],
    checkpoint: CheckpointFolder,
    reset: ResetQueries = None,
    replay: ReplayQueries = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")] = False,
) -> None:
    """Tell what an upgrade would do before it is done: which queries go on, begin anew, or are refused.

    Nothing is changed, and the application may be running.  Exit code 1: the upgrade would be refused.

    Example: `headgate plan shop.py --checkpoint state/shop --reset carts`
    """
    network = load_app(app).network
    upgrade = Upgrade(network, Log(existing(checkpoint)), Choices(reset or (), replay or ()))
    if as_json:
        told = {"accepted": upgrade.accepted, "queries": [asdict(each) for each in upgrade.verdicts]}
        typer.echo(json.dumps(told | {"lost": upgrade.lost}, indent=2))
    else:
        _show(upgrade, network.name)
    if not upgrade.accepted:
        raise typer.Exit(1)


def _show(upgrade: Upgrade, app: str) -> None:
    table = titled(f"{shown(app)} on this checkpoint", "query", "what", "at", "how")
    for one in upgrade.verdicts:
        at = "" if one.at is None else f"{one.at:,}"
        color = _COLORS[one.what]
        table.add_row(shown(one.query), f"[{color}]{one.what}[/]", at, shown(one.why))
    console.print(table)
    for line in upgrade.lost:
        say(f"[yellow]{shown(line)}[/]")
    for one in upgrade.verdicts:
        if one.what == REFUSED:
            say(f"[red]Query '{shown(one.query)}' would be refused.[/] You can:")
            for offer in one.offers:
                say(f"  - {shown(offer)}")
    say("The upgrade would be accepted." if upgrade.accepted else "The upgrade would be refused.")


def savepoint(
    folder: Annotated[str, typer.Argument(help="Where to: a new folder, or a place in a store.")],
    app: AppName = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Of a checkpoint whose application does not run.")
    ] = None,
) -> None:
    """Write a savepoint: a consistent copy of a checkpoint, of a running application or of a stopped one.

    A run begins from it with `headgate run app.py --from-savepoint FOLDER --checkpoint NEW`.

    Example: `headgate savepoint before-upgrade --app shop`
    """
    if checkpoint is None:
        label = call(app, "savepoint", folder=_there(folder))
    else:
        place = existing(checkpoint)
        held = claim(place, savepoints.application(place))
        try:
            label = savepoints.savepoint(place, open_storage(folder))
        finally:
            held.release()
    say(
        f"Savepoint of {shown(label['app'])} after step {label['step']}: {len(label['queries'])} queries, "
        f"{label['files']} files in {shown(folder)}."
    )


def _there(place: str) -> str:
    """A folder of where the command is given, not of where the application runs."""
    return place if "://" in place else os.path.abspath(place)


def state(
    place: Annotated[str, typer.Argument(help="A running application's name, a checkpoint or a savepoint.")],
    query: Annotated[str, typer.Argument(help="The query's name.")],
    limit: Annotated[int, typer.Option(min=0, help="Rows of each box; 0: all.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of tables.")] = False,
) -> None:
    """Show what a query's boxes remember: their keys and values, after the last commit.

    Example: `headgate state state/shop carts --limit 20`
    """
    root = place if "://" in place or os.path.isdir(place) else call(place, "checkpoint")["root"]
    for left in (True, False):
        try:
            found = _states(existing(root), query)
            break
        except RunError:  # a running application has written the state anew, and removed what it was
            if not left:
                raise
    if as_json:
        typer.echo(json.dumps([_data(each, limit) for each in found]))
        return
    if not found:
        say(f"Query '{shown(query)}' has no box with a state.")
    for each in found:
        _print_state(each, limit)


def _states(place: Storage, query: str) -> list[BoxState]:
    position = savepoints.told(place)
    names = sorted(
        place.names("pipelines"), key=lambda name: os.path.getmtime(place.path(f"pipelines/{name}"))
    )
    if not names:
        raise SourceError(f"There is no pipeline in {place.root}; it was made by an older version.")
    nodes = pipeline(place, names[-1])
    known = [outlet.name for outlet in nodes.outlets]
    if query not in known:
        raise PipelineError(f"There is no query '{query}'.{nearest(query, known)}")
    return states(place, nodes, position, query)


def _data(own: BoxState, limit: int) -> dict[str, Any]:
    table = own.table.slice(0, limit or None)
    rows = json_value(table.to_pylist())
    return {"box": own.box, "does": own.does, "at": own.at, "rows": own.table.num_rows, "state": rows}


def _print_state(own: BoxState, limit: int) -> None:
    rows = own.table.num_rows
    title = f"{shown(own.box)} ({shown(own.does)}), up to tuple {own.at:,}: {rows:,} rows"
    table = titled(title, *map(shown, own.table.column_names))
    for row in own.table.slice(0, limit or None).to_pylist():
        table.add_row(*("" if value is None else shown(str(value)) for value in row.values()))
    console.print(table)
    if limit and rows > limit:
        say(f"The first {limit} rows; --limit 0 shows all of them.")
