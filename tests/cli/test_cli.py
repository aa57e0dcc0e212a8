"""The command line: every command helps with an example, works, and tells mistakes in one readable line."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate.cli import demo as shop_demo
from headgate.cli import main
from headgate.cli.calibration import calibrate as calibrating
from headgate.machine.topology import MIB

Run = Callable[..., str]
COMMANDS = [
    "run",
    "simulate",
    "show",
    "demo",
    "policies",
    "topology",
    "calibrate",
    "replay",
    "advise",
    "generate",
    "bench",
    "status",
    "restart",
    "query",
]

GOOD = """
import headgate as hg
from headgate import testing

app = hg.App("shop")
out = []
rows = [{"k": i % 3, "a": i} for i in range(100)]
numbers = app.source("numbers", testing.from_rows(rows))
numbers.filter("a > 9", name="big").to("big", hg.to_list(out), qos=hg.QoS([(0, 1), (100, 1)]))
numbers.key_by("k").running("sum(a) AS s", name="sums").to("sums", hg.to_list([]))
"""


@pytest.fixture
def app_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "shop.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def mistake(wide: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``mistake(...)``: the line in which ``main`` tells what is wrong; it must exit with 1."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["headgate", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 1
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        return " ".join(errors.split())

    return run


# --- help -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(headgate: Run, command: str) -> None:
    said = headgate(command, "--help")
    assert "Example:" in said
    assert f"headgate {command}" in said


def test_help_lists_every_command(headgate: Run) -> None:
    said = headgate("--help")
    for command in COMMANDS:
        assert command in said


# --- commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["threads", "simulated"])
def test_run(headgate: Run, app_file: Callable[[str], Path], engine: str) -> None:
    said = headgate("run", app_file(GOOD), "--engine", engine, "--workers", "2", "--policy", "round_robin")
    assert "big" in said
    assert "90" in said, "results"
    assert "1.000" in said, "QoS"
    assert "ok" in said
    assert f"{engine}, policy round_robin, 2 workers" in said


def test_run_takes_a_policy_with_functions_of_a_file(
    headgate: Run, mistake: Run, app_file: Callable[[str], Path], tmp_path: Path
) -> None:
    functions = tmp_path / "mine.py"
    functions.write_text("def cheapest(box): return -box.cost\ndef home(box, workers): return 0\n")
    policy = f"haren(prioritize={functions}:cheapest, assign={functions}:home, batch=64)"
    said = headgate("run", app_file(GOOD), "--engine", "simulated", "--policy", policy)
    assert "policy haren" in said
    wrong = mistake("run", app_file(GOOD), "--policy", f"haren(prioritize={functions}:dearest)")
    assert "defines no function 'dearest'" in wrong


def test_run_tells_of_sleeping_workers_and_of_the_allocator(
    headgate: Run, app_file: Callable[[str], Path]
) -> None:
    text = """
    import headgate as hg
    app = hg.App("running")
    rows = app.source("rate", hg.from_rate(1_000_000, limit=50_000))
    rows.key_by("value").running("sum(value) AS s").to("sums", hg.to_function(lambda query, batch: None))
    """
    said = " ".join(
        headgate(
            "run", app_file(text), "--engine", "threads", "--allocator", "local", "--packet-rows", "4096"
        ).split()
    )
    assert "operations on semaphores" in said
    assert "allocator local:" in said
    assert "superblocks; all have come back" in said


def test_simulate_tells_where_bytes_were(headgate: Run, app_file: Callable[[str], Path]) -> None:
    machine = ("--topology", "e7540", "--memory", "e7540")
    said = " ".join(headgate("simulate", app_file(GOOD), *machine).split())
    assert "bytes read and written: " in said
    assert "memory" in said.partition("bytes read and written: ")[2]


def test_run_finds_a_function_that_builds_the_app(headgate: Run, app_file: Callable[[str], Path]) -> None:
    text = """
    import headgate as hg
    from headgate import testing

    def build():
        app = hg.App("built")
        app.source("numbers", testing.from_rows([{"a": 1}])).to("only", hg.to_list([]))
        return app
    """
    assert "only" in headgate("run", app_file(text), "--engine", "threads")


def test_run_stops_after_the_seconds_given(headgate: Run, app_file: Callable[[str], Path]) -> None:
    text = """
    import headgate as hg
    app = hg.App("endless")
    app.source("rate", hg.from_rate(100)).to("ticks", hg.to_list([]))
    """
    assert "ticks" in headgate("run", app_file(text), "--engine", "threads", "--until", "0.1")


def test_simulate_counts_in_virtual_time(headgate: Run, app_file: Callable[[str], Path]) -> None:
    text = """
    import headgate as hg
    from headgate import testing
    app = hg.App("slow")
    rows = [{"a": i} for i in range(10)]
    app.source("numbers", testing.from_rows(rows)).universal(cost=600.0).to("hours", hg.to_list([]))
    """
    said = headgate(
        "simulate", app_file(text), "--policy", "round_robin", "--workers", "1", "--call-overhead", "60"
    )
    assert "10 tuples in" in " ".join(said.split())
    assert "6060.00 s" in said


def test_show_draws_the_network(headgate: Run, app_file: Callable[[str], Path]) -> None:
    said = headgate("show", app_file(GOOD))
    assert said.startswith("flowchart LR")
    assert "sums" in said


def test_show_as_data(headgate: Run, app_file: Callable[[str], Path]) -> None:
    data = json.loads(headgate("show", app_file(GOOD), "--data"))
    assert [box["name"] for box in data["boxes"]] == ["big", "sums"]


def test_policies_lists_them_all(headgate: Run) -> None:
    said = headgate("policies")
    for name in [*hg.policies.names(), *hg.policies.aliases()]:
        assert name in said


def test_generate_writes_the_streams(headgate: Run, tmp_path: Path) -> None:
    said = headgate("generate", "tpcx-bb", tmp_path / "data", "--rows", "2000", "--seed", "3")
    assert "2,000 clicks" in said
    files = list((tmp_path / "data").rglob("*.parquet"))
    rows = {path: pq.ParquetFile(path).metadata.num_rows for path in files}
    assert list(rows.values()).count(2000) >= 2


def test_demo_shows_figures_and_answers(headgate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop_demo, "WARM_ROWS", 1_000)
    monkeypatch.setattr(shop_demo, "TRIED_ROWS", 4_000)
    said = headgate("demo", "--engine", "threads", "--seconds", "4", "--workers", "2")
    for query in ("q1", "q2", "q3", "q4", "q15"):
        assert query in said
    assert "failed" not in said
    assert "tight" in said
    assert "loose" in said
    assert "times as many rows" in said


@pytest.mark.parametrize("command", [["run", "--engine", "threads"], ["simulate"]])
def test_a_query_that_fails_is_told_beside_the_others_and_by_the_exit_code(
    mistake: Run, app_file: Callable[[str], Path], capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    text = """
    import headgate as hg
    from headgate import testing
    app = hg.App("half")
    def broken(row):
        raise ValueError("no such page")
    numbers = app.source("numbers", testing.from_rows([{"a": 1}]))
    numbers.flat_map_rows(broken, schema=numbers.schema).to("bad", hg.to_list([]))
    numbers.to("good", hg.to_list([]))
    """
    said = mistake(*command, app_file(text))
    assert "Query 'bad' failed" in said
    assert "no such page" in said


def test_the_help_of_run_tells_the_exit_codes(headgate: Run) -> None:
    said = " ".join(headgate("run", "--help").replace("│", " ").split())
    assert "1 if a query failed" in said


# --- mistakes -------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(mistake: Run) -> None:
    assert "There is no file nothing.py." in mistake("run", "nothing.py")


def test_a_file_without_an_application(mistake: Run, app_file: Callable[[str], Path]) -> None:
    said = mistake("run", app_file("x = 1"))
    assert "defines no application" in said
    assert "app = hg.App(" in said


def test_a_mistake_in_the_pipeline(mistake: Run, app_file: Callable[[str], Path]) -> None:
    text = """
    import headgate as hg
    from headgate import testing
    app = hg.App("shop")
    app.source("clicks", testing.from_rows([{"user_id": 1}])).filter("user_idd = 1")
    """
    said = mistake("run", app_file(text))
    assert said.startswith("UnknownColumn: ")
    assert "'user_idd'" in said
    assert "Did you mean 'user_id'?" in said


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--engine", "cluster"], ("no engine 'cluster'", "threads", "simulated")),
        (["--policy", "rnd_robin"], ("no policy 'rnd_robin'", "Did you mean 'round_robin'?")),
        (["--policy", "mc(k=3)"], ("'mc' has no option 'k'", "it takes train")),
        (["--until", "tomorrow"], ("--until tomorrow", "'drained'", "seconds")),
        (["--until", "-1"], ("until=-1.0", "seconds")),
        (["--workers", "0"], ("workers=0", "at least 1")),
        (["--packet-rows", "10"], ("--packet-rows is for the threads engine, not for 'spark'",)),
        (["--engine", "threads", "--take-over"], ("--take-over is for the spark engine",)),
        (["--engine", "threads", "--master", "local[1]"], ("--master is for the spark engine",)),
        (["--engine", "threads", "--packet-rows", "many"], ("packet_rows='many'", "'auto'")),
        (["--engine", "threads", "--allocator", "locl"], ("allocator='locl'", "'local'")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_option_of_run(
    mistake: Run, app_file: Callable[[str], Path], arguments: list[str], parts: tuple[str, ...]
) -> None:
    said = mistake("run", app_file(GOOD), *arguments)
    for part in parts:
        assert part in said


def test_a_run_in_which_everything_fails(mistake: Run, app_file: Callable[[str], Path]) -> None:
    text = """
    import headgate as hg
    from headgate import testing
    app = hg.App("all")
    def broken(row):
        raise ValueError("no such page")
    numbers = app.source("numbers", testing.from_rows([{"a": 1}]))
    numbers.flat_map_rows(broken, schema=numbers.schema).to("bad", hg.to_list([]))
    """
    said = mistake("run", app_file(text), "--engine", "threads")
    assert "RunError" in said
    assert "'bad'" in said
    assert "no such page" in said


def test_a_workload_and_a_benchmark_that_are_not_there(mistake: Run) -> None:
    assert "no workload 'tpch'" in mistake("generate", "tpch")
    said = mistake("bench", "speed")
    assert "no benchmark 'speed'" in said
    assert "overhead" in said


@pytest.mark.parametrize("name", ["[bold].py", "[/x].py", "[1, 2].py"])
def test_brackets_in_a_message_are_text(mistake: Run, name: str) -> None:
    """What a user wrote must come back as it was, whatever the terminal's own markup means by it."""
    assert f"There is no file {name}." in mistake("run", name)


# --- topology -------------------------------------------------------------------------------------------


def test_topology_draws_a_machine(headgate: Run) -> None:
    drawn = headgate("topology", "e5310")
    assert "e5310: 1 node, 4 groups, 8 cores" in drawn
    assert "node 0, memory 8 GB" in drawn
    assert [f"group {n}" in drawn for n in range(5)] == [True] * 4 + [False]
    assert drawn.count("L2 4 MB") == 4
    assert drawn.count("L1 32 kB") == 8
    drawn = headgate("topology", "e7540")
    assert "4 nodes, 4 groups, 48 cores" in drawn
    assert drawn.count("L3 18 MB") == 4
    assert drawn.count("1.4 (1)") + drawn.count("1.5 (1)") == 12
    assert "host: " in headgate("topology")


def test_topology_as_text_is_a_file_that_it_reads(headgate: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.topology"
    file.write_text(headgate("topology", "e7-4820", "--text").replace('name = "e7-4820"', 'name = "mine"'))
    assert "mine: 4 nodes, 4 groups, 64 cores" in headgate("topology", file)


def test_calibrate_measures_an_application_and_says_where_it_wrote(
    headgate: Run, app_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "_LARGEST", 4 * MIB)  # how much memory is read is not what this tests
    file = tmp_path / "host.costs"
    unseen = GOOD + 'numbers.filter("a > 999").filter("k = 1", name="none").to("none", hg.to_list([]))'
    said = headgate("calibrate", app_file(unseen), "--quick", "--output", file)
    assert "L1" in said
    assert "filter(a > 9)" in said
    assert f"Written to {file}" in said
    engine = hg.Simulated(topology="host", memory=file, costs=file)
    assert engine.costs.calibration is not None
    assert "filter(a > 9)" in engine.costs.calibration.operators
    assert "No row of the sample came to 'none'" in said
    simulated = headgate(
        "simulate", tmp_path / "shop.py", "--topology", "host", "--memory", file, "--costs", file
    )
    assert "big" in simulated


def test_mistakes_of_calibrate_are_one_readable_line(
    mistake: Run, app_file: Callable[[str], Path], tmp_path: Path
) -> None:
    said = mistake("simulate", app_file(GOOD), "--costs", tmp_path / "none.costs")
    assert "'headgate calibrate' measures the host's" in said
    assert "give topology= too" in mistake("simulate", app_file(GOOD), "--memory", "e7540")
    assert "there is no folder" in mistake("calibrate", "--output", tmp_path / "none" / "host.costs")
    assert "name no application" in mistake("calibrate", app_file(GOOD), "--validate")


def test_mistakes_of_topology_are_one_readable_line(mistake: Run, tmp_path: Path) -> None:
    said = mistake("topology", "e7450")
    assert "no topology 'e7450'" in said
    assert "host, e5310, e7-4820, e7540" in said
    file = tmp_path / "bad.topology"
    file.write_text('name = "bad"\nnode = [{cores = "0-3"}]\ncache = [{level = 2, size = "much"}]\n')
    assert "bad.topology, cache 0: 'much' is no size" in mistake("topology", file)
