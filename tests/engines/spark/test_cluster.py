"""The same application on threads, on a standalone cluster that loses executors, and by spark-submit.

The executors' Python has everything but Headgate, which the driver ships to them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.maven import spark_home
from object_stores import BUCKET, options
from servers import HOST, LOCAL, Cluster
from waiting import PATIENCE

pytestmark = pytest.mark.xdist_group("servers")
APP = """
import json, sys
import pyarrow as pa
import headgate as hg
import prices

where = sys.argv[1]
batch = pa.RecordBatch.from_pydict(
    {"user": [f"u{i % 7}" for i in range(5000)], "x": list(range(5000)), "ts": [i // 10 for i in range(5000)]}
)
app, big, sums = hg.App("shop"), [], []
clicks = app.source("clicks", hg.from_batches([batch.slice(at, 500) for at in range(0, 5000, 500)]))
priced = clicks.filter("x % 3 = 0").flat_map_rows(
    prices.priced, schema=pa.schema([("x", pa.int64()), ("price", pa.int64())]))
priced.to("big", hg.to_list(big))
clicks.key_by("user").running("sum(x) AS s").to("sums", hg.to_list(sums))
orders = []
if where == "threads":
    engine = hg.Threads()
else:
    from headgate.engines.spark import planner, sharing
    from headgate.engines.spark.jobs import Jobs
    # However small a step is, all cores share it.
    planner.LEAST_SHARED, planner.EVEN, planner.FIRST_ROWS = 0.0, 0.0, 500
    sharing.Sharing.best = lambda self, shapes, *_: shapes[-1]
    run = Jobs.run
    def watched(self, slot, order, *given):
        orders.append(order)
        return run(self, slot, order, *given)
    Jobs.run = watched
    engine = hg.Spark(**json.loads(where))
report = app.run(engine)
print(json.dumps({"big": big, "sums": sums, "errors": [str(q.error) for q in report.queries.values()]}))
if where != "threads":
    import urllib.request
    from headgate.engines.spark.session import existing
    session = existing()
    context = session.sparkContext
    def python(batches):
        import sys, importlib.util
        for batch in batches:
            found = importlib.util.find_spec("headgate").origin
            yield pa.RecordBatch.from_pydict({"python": [sys.executable], "package": [found]})
    told = session.range(0, 1, 1, 1).mapInArrow(python, "python string, package string").collect()[0]
    page = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/jobs"
    jobs = json.load(urllib.request.urlopen(page, timeout=60))
    print(json.dumps({
        "master": context.master, "python": told["python"], "package": told["package"],
        "shared": sum(order.stages is not None and not order.exchange for order in orders),
        "chosen": report.chosen,
        "jobs": [job.get("description", "") for job in jobs],
    }))
"""
PRICES = """
import os, signal

FACTOR = 10
FAULT = os.environ.get("FAULT")


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def priced(row):
    if FAULT and row["x"] == 3003 and not os.path.exists(FAULT):
        open(FAULT, "x").close()
        os.kill(parent(os.getppid()), signal.SIGKILL)  # the daemon's parent: the executor
    return [{"x": row["x"], "price": row["x"] * FACTOR}] if row["x"] % 2 else []
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's program of two files."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "app.py").write_text(APP)
    (folder / "prices.py").write_text(PRICES)
    return folder / "app.py"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has everything that this one has but Headgate."""
    folder = tmp_path_factory.mktemp("bare")
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "headgate" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    venv.create(folder / "venv", with_pip=False)
    (own,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own / "packages.pth").write_text(f"{packages}\n")
    python = str(folder / "venv" / "bin" / "python")
    check = "import importlib.util, pyspark, sqlglot; print(importlib.util.find_spec('headgate'))"
    said = subprocess.run([python, "-c", check], capture_output=True, text=True, cwd=folder, check=True)
    assert said.stdout.strip() == "None"
    return python


def run(command: list[str], program: Path, where: str, env: dict[str, str]) -> list[Any]:
    done = subprocess.run(
        [*command, str(program), where],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=program.parent,
        env={**os.environ, **LOCAL, **env},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def answers(program: Path) -> Any:
    (found,) = run([sys.executable], program, "threads", {})
    assert len(found["sums"]) == 5000
    assert len(found["big"]) == 833
    return found


SETTINGS = {
    "spark.ui.port": "0",
    "spark.driver.host": HOST,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}


USERS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.interval": "20ms",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}
"""What a user's own cluster may do on its own: none of it may change an answer."""


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("headgate-")]


def test_a_cluster_whose_executors_lack_the_package_gives_the_answers_of_threads(
    cluster: Cluster, program: Path, bare_python: str, answers: Any, tmp_path: Path, s3: str
) -> None:
    """Although it is adaptive, speculates, gives executors back, and one of them is killed in a step.

    Driver and executors share no folder: orders, states and the spool are in an object store.
    """
    store = {"checkpoint": f"s3://{BUCKET}/shop", "storage_options": options(s3)}
    where = json.dumps({"master": cluster.master, "options": {**SETTINGS, **USERS}, **store})
    fault = tmp_path / "executor-was-killed"
    env = {"PYSPARK_PYTHON": bare_python, "TMPDIR": str(tmp_path), "FAULT": str(fault)}
    found, told = run([sys.executable], program, where, env)
    assert found == answers
    assert told["master"] == cluster.master
    assert told["python"] == bare_python
    assert ".zip" in told["package"]
    assert fault.exists()
    assert told["shared"] >= 2, "packets travelled in Spark's shuffle"
    assert any(re.match(r"headgate shop: step \d+: .*(sums|big)", job) for job in told["jobs"]), told["jobs"]
    assert left_behind(tmp_path) == []


@pytest.mark.faults
def test_spark_submit_says_where_and_the_answers_are_the_same(
    cluster: Cluster, program: Path, bare_python: str, answers: Any, tmp_path: Path
) -> None:
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.master]
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": "3"}.items():
        submit += ["--conf", f"{name}={value}"]
    env = {"PYSPARK_PYTHON": bare_python, "PYSPARK_DRIVER_PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    found, told = run(submit, program, "{}", env)
    assert found == answers
    assert told["master"] == cluster.master
    assert told["python"] == bare_python
    assert left_behind(tmp_path) == []
