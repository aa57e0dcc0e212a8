"""``headgate set`` against an application that runs in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.control.socket import ControlError, NotRunning, running
from headgate.errors import HeadgateError
from waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("sockets")
Run = Callable[..., str]
APP = """
import headgate as hg
app = hg.App("flowing")
numbers = app.source("numbers", hg.from_rate(1000))
numbers.filter("value % 2 = 0", name="even").to("even", hg.to_list([]))
numbers.filter("value % 2 = 1", name="odd").to("odd", hg.to_list([]))
"""
MORE = (
    APP
    + """
numbers.filter("value % 3 = 0", name="third").to("third", hg.to_parquet(OUT))
"""
)


@pytest.fixture
def process(headgate: Run, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The application, running on threads; it ends by itself when it is terminated, as services are."""
    file = tmp_path / "app.py"
    file.write_text(APP)
    start = [sys.executable, "-c", "from headgate.cli.main import main; main()", "run", str(file)]
    command = [*start, "--engine", "threads", "--until", "stopped"]
    made = subprocess.Popen([*command, "--workers", "2"], env={**os.environ}, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: "flowing" in running(), "the application did not start", PATIENCE)
        yield made
        made.terminate()
        assert made.wait(PATIENCE) == 0
    finally:
        made.kill()


def status(headgate: Run) -> dict[str, Any]:
    return dict(json.loads(headgate("status", "--json")))


def test_everything_can_be_set_while_it_runs(
    headgate: Run, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert "Set policy to fcfs: policy fcfs, 2 workers." in headgate("set", "policy", "fcfs")
    assert "Set period to 50ms" in headgate("set", "period", "50ms", "--app", "flowing")
    assert "Set batch to 100" in headgate("set", "batch", "100")
    assert "Set workers to 4: policy fcfs, 4 workers." in headgate("set", "workers", 4)
    more, out = tmp_path / "more.py", tmp_path / "third"
    more.write_text(MORE.replace("OUT", repr(str(out))))
    assert "Added third" in headgate("set", "add", more)
    assert "Removed odd" in headgate("set", "remove", "odd")
    eventually(lambda: {q["name"]: q["tuples_out"] for q in status(headgate)["queries"]}["third"] > 0)
    now = status(headgate)
    assert (now["policy"], now["workers"], now["problems"]) == ("fcfs", 4, [])
    states = {query["name"]: query["state"] for query in now["queries"]}
    assert states == {"even": "running", "odd": "removed", "third": "running"}
    given = {query["name"]: query["tuples_out"] for query in now["queries"]}
    eventually(lambda: status(headgate)["queries"][0]["tuples_out"] > given["even"])
    assert status(headgate)["queries"][1]["tuples_out"] == given["odd"]


def test_queries_in_sql_join_and_leave(
    headgate: Run, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    select = "SELECT value FROM numbers WHERE value % 5 = 0"
    assert "Added fifth." in headgate(
        "add", select, "--name", "fifth", "--goal", "500 ms", "--to", tmp_path / "f"
    )
    eventually(lambda: status(headgate)["queries"][-1]["tuples_out"] > 0)
    for wrong, name, answer in (
        (select.replace("numbers", "number"), "other", "Did you mean 'numbers'?"),
        (select.replace("value", "valu"), "other", "There is no column 'valu'"),
        (select, "fifth", "There is already a query called 'fifth'"),
        (select, "even", "There is already a query called 'even'"),
    ):
        with pytest.raises(ControlError, match=re.escape(answer)):
            headgate("add", wrong, "--name", name)
    says = headgate("add", select, "--name", "sixth", "--goal", "500 ms", "--check")
    assert "All goals that are kept now would be kept" in says
    assert "sixth" not in {query["name"] for query in status(headgate)["queries"]}
    assert "Removed fifth." in headgate("remove", "fifth")
    with pytest.raises(ControlError, match="There is no query 'fifth' that runs"):
        headgate("remove", "fifth")
    states = {query["name"]: query["state"] for query in status(headgate)["queries"]}
    assert states == {"even": "running", "odd": "running", "fifth": "removed"}


def test_mistakes_are_told_and_change_nothing(headgate: Run, process: subprocess.Popen[bytes]) -> None:
    for what, value, message in (
        ("policy", "fcsf", "There is no policy 'fcsf'. Did you mean 'fcfs'"),
        ("period", "50ms", "Policy 'lp' has no period to set; these have: chain, fcfs"),
        ("period", "50 parsecs", "'parsecs' in '50 parsecs' is not a unit of time"),
        ("workers", "0", "workers=0: it must be a whole number of at least 1"),
        ("workers", "99999999", "workers=99999999: there can be at most 1,024"),
        ("workers", "9" * 5000, "workers: it must be a whole number from 1 to 1,024"),
        ("batch", "9" * 5000, "batch: it must be a whole number from 1 to 1,000,000,000"),
        ("workers", "many", "workers many: it must be a whole number from 1 to 1,024"),
        ("remove", "ever", "There is no query 'ever' that runs. Did you mean 'even'"),
        ("add", "nowhere.py", "There is no file"),
        ("polici", "qos", "'polici' cannot be set. Did you mean 'policy'"),
    ):
        with pytest.raises(ControlError, match=message):
            headgate("set", what, value)
    assert (status(headgate)["policy"], status(headgate)["workers"]) == ("lp", 2)


def test_nothing_is_set_where_nothing_runs(headgate: Run) -> None:
    with pytest.raises(NotRunning, match="No application is running"):
        headgate("set", "policy", "qos")
    with pytest.raises(HeadgateError, match="Application 'shop' is not running"):
        headgate("set", "policy", "qos", "--app", "shop")


def test_results_cannot_go_to_a_store_that_is_not_reached(
    headgate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not into a local folder of that name, which the command would have made of it."""
    monkeypatch.chdir(tmp_path)
    for place in ("s3a://bucket/x", "parquet:s3a://bucket/x", "dbfs:/x"):
        with pytest.raises(HeadgateError, match=r"query 'x': --to: '\w+:.*' is in a store"):
            headgate("add", "SELECT 1", "--name", "x", "--to", place)


def test_the_help_has_an_example(headgate: Run) -> None:
    assert "headgate set policy multi_class" in headgate("set", "--help")
