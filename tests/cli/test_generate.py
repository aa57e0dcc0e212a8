"""``headgate generate aurora``: the file it writes is the network asked for, and mistakes name the option."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from benchmarks.workloads import aurora
from headgate.api.app import load_app
from headgate.cli import main
from headgate.cli.main import cli


def generate(*arguments: object) -> str:
    result = CliRunner().invoke(cli, ["generate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_file_is_the_network_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    said = generate(
        "aurora", file, "--queries", 3, "--depth", 2, "--fan-out", 2, "--cost", "0.001:0.002",
        "--selectivity", "0.5", "--load", 0.25, "--burst", 4, "--tuples", 60, "--seed", 7,
        "--workers", 2, "--qos", "loose", "--qos", "0:1,0.5:1,2:0",
    )  # fmt: skip
    assert "9 boxes, 6 inputs, 3 outputs" in said
    wanted = aurora.plan(
        queries=3, depth=2, fan_out=2, cost=(0.001, 0.002), selectivity=0.5, load=0.25, workers=2,
        qos=[aurora.LOOSE, ((0, 1), (0.5, 1), (2, 0))], seed=7,
    )  # fmt: skip
    network = load_app(file).network
    costs = {box.name: box.operator.cost for box in network.boxes}
    assert costs == {box.name: box.cost for tree in wanted.trees for box in tree.boxes()}
    assert {source.origin.rate for source in network.sources} == {wanted.rate}
    assert {source.origin.burst for source in network.sources} == {4}
    assert sum(source.origin.limit for source in network.sources) == 60
    assert {tuple(goal.points) for goal in network.goals.values()} <= {
        aurora.LOOSE,
        ((0, 1), (0.5, 1), (2, 0)),
    }


def test_the_file_runs(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    generate("aurora", file, "--queries", 2, "--depth", 2, "--fan-out", 1, "--tuples", 20, "--load", 5)
    for engine in (hg.Simulated(workers=1), hg.Threads(1)):
        report = load_app(file).run(engine, "mc")
        assert [query.tuples_out for query in report.queries.values()] == [10, 10]


def test_help_shows_an_example() -> None:
    for workload in ("tpcx-bb", "aurora"):
        assert f"headgate generate {workload}" in " ".join(generate(workload, "--help").split())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--queries", "0"), ("--depth", "0"), ("--fan-out", "0.5"), ("--cost", "fast"), ("--cost", "2:1"),
        ("--cost", "1:2:3"), ("--selectivity", "2"), ("--load", "0"), ("--burst", "0"), ("--tuples", "3"),
        ("--qos", "strict"), ("--qos", "0:0,1:1"), ("--workers", "0"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_option(
    option: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "net.py"
    monkeypatch.setattr(sys, "argv", ["headgate", "generate", "aurora", str(file), option, value])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert f"{option} " in capsys.readouterr().err
    assert not file.exists()
