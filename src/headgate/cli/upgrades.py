"""Commands about what a checkpoint has: ``plan``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headgate.checkpoint.log import Log
from headgate.checkpoint.storage import Storage, storage
from headgate.checkpoint.upgrade import REFUSED, Choices, Upgrade
from headgate.cli.checkout import load_app
from headgate.cli.display import console, say, shown, titled
from headgate.errors import SourceError

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
CheckpointFolder = Annotated[Path, typer.Option("--checkpoint", help="The application's checkpoint.")]
_COLORS = {"goes on": "green", "begins": "blue", "leaves": "yellow", "refused": "red"}


def upgrades(cli: typer.Typer) -> None:
    """Add the commands to the command line."""
    cli.command()(plan)


def existing(folder: Path) -> Storage:
    """The checkpoint in a folder; an error if there is none."""
    place = storage(folder)
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
