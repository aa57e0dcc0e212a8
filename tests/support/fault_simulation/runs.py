"""One run by its seed: an application, faults, restarts, and what must hold at the end."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa

import headgate as hg
from fault_simulation.disk import ROOT, Disk
from fault_simulation.edges import _pipelines, edges, entered
from fault_simulation.jobs import Cluster, SimulatedJobs
from fault_simulation.world import Died, Process, Thread, World, Wrong, world
from headgate.checkpoint import log
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.log import Log
from headgate.checkpoint.opening import open_storage
from headgate.checkpoint.state_store import take
from headgate.connectors.sink import Sink, StepWriter
from headgate.engines.spark import engine as spark
from headgate.engines.spark import holders, shipping
from headgate.errors import HeadgateError
from killed_driver import Trains

CHECKPOINT, OUT = f"{ROOT}/checkpoint", f"{ROOT}/out"
ROWS = 24
RESTARTS = 40
"""Runs of one application after which it counts as one that never comes to its end."""
BUCKETS = 4
DAY = 86_400.0
"""After which nobody can still be writing what he has begun."""


# --- applications ------------------------------------------------------------------------------------


class Receiver(Sink):
    """A system outside that knows steps by their numbers: a repeat must bring the same rows again."""

    def open(self, query: str, schema: pa.Schema) -> StepWriter:
        return _Receives(query)


class _Receives(StepWriter):
    def __init__(self, query: str) -> None:
        self._query = query

    def write(self, batch: pa.RecordBatch) -> None:
        raise AssertionError("a step's rows come as one")

    def write_step(self, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        world().point(f"deliver {self._query} {number}")
        ledger, trouble = received(), trouble_of()
        if trouble == "before":
            raise OSError("simulated: the receiver is not there")
        known = ledger.setdefault(self._query, {})
        if number in known and known[number] != rows:
            world().wrong = f"step {number} of query '{self._query}' came again with other rows"
        known[number] = rows
        if trouble == "after":
            raise OSError("simulated: the receiver's answer was lost")


_ledgers: list[dict[str, dict[int, list[Any]]]] = []
_troubles: list[list[str]] = []


def received() -> dict[str, dict[int, list[Any]]]:
    return _ledgers[-1]


def trouble_of() -> str:
    return _troubles[-1].pop() if _troubles[-1] else ""


def _live() -> hg.App:
    """A stream that arrives while it runs; parts, keyed sums, and a receiver behind a chain of boxes."""
    app = hg.App("live")
    numbers = app.source("numbers", hg.from_rate(1500, limit=ROWS, burst=2))
    odd = numbers.filter("value % 5 <> 0").select("value", "value % 3 AS user", "timestamp")
    odd.select("value").to("plain", hg.to_parquet(f"{OUT}/plain"))
    sums = odd.key_by("user").running("sum(value) AS total", "count(*) AS n")
    sums.select("user", "total", "n").to("sums", hg.to_parquet(f"{OUT}/sums"))
    sums.filter("n % 2 = 0").select("value", "total").to("told", Receiver())
    return app


def _finite() -> hg.App:
    """Two finite sources that take turns and are spooled; a join, a window, and a union in order."""
    app = hg.App("finite")
    left = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us"))])
    times = [n * 1_000_000 for n in range(ROWS)]

    def rows(start: int, step: int) -> list[pa.RecordBatch]:
        made = []
        for low in range(0, ROWS, 8):
            ids = [(start + step * n) % 11 for n in range(low, low + 8)]
            made.append(
                pa.record_batch([ids, pa.array(times[low : low + 8], pa.timestamp("us"))], schema=left)
            )
        return made

    a = app.source("a", hg.from_batches(rows(0, 3)))
    b = app.source("b", hg.from_batches(rows(5, 7)))
    both = a.union(b)
    both.filter("id > 2").to("both", hg.to_parquet(f"{OUT}/both"))
    counts = both.key_by("id").window(hg.tumbling("10 seconds", on="ts")).agg("count(*) AS n")
    counts.to("windows", hg.to_parquet(f"{OUT}/windows"))
    joined = a.key_by("id").join(b.key_by("id"), within="3 seconds", on="ts")
    joined.select("id").to("pairs", Receiver())
    return app


APPS: dict[str, Callable[[], hg.App]] = {"live": _live, "finite": _finite}


@dataclass
class Application:
    """Built once: what a pipeline is does not change from run to run."""

    name: str
    network: Any
    nodes: Nodes
    data: bytes
    expected: dict[str, list[Any]] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    points: int = 0
    """Of the run that nothing disturbs."""


_applications: dict[str, Application] = {}


def application(name: str) -> Application:
    found = _applications.get(name)
    if found is None:
        network = APPS[name]().network
        nodes = Nodes(network)
        data = shipping.pickled(nodes)
        _pipelines[data] = shipping_loads(data)
        found = _applications[name] = Application(name, network, nodes, data)
        quiet = Simulation(found, 0, faults=0)
        quiet.run()
        found.expected, found.states = quiet.output(), quiet.states()
        found.points = quiet.world.points
    return found


def shipping_loads(data: bytes) -> Any:
    import pickle

    return pickle.loads(data)


# --- one run -------------------------------------------------------------------------------------------


class _Spark(hg.Spark):
    """Spark without Spark."""

    simulation: Simulation

    def _ready(self, network: Any) -> tuple[Any, int, bool]:
        return None, self.simulation.cores, False

    def _jobs(self, session: Any, place: Any, app: str, exchange: str) -> Any:
        jobs = SimulatedJobs(session, place, app, exchange)
        jobs.cluster = self.simulation.cluster
        return jobs


class Simulation:
    """``faults``: how many at most; what strikes when is the seed's choice."""

    def __init__(self, app: Application, seed: int, faults: int | None = None) -> None:
        self.app, self.seed = app, seed
        self.world = World(seed)
        self.random = random.Random(f"faults {seed}")
        self.disk = Disk(self.world)
        for path in (CHECKPOINT, OUT):
            self.disk.mkdir(path)
            self.disk.root.synced = dict(self.disk.root.names)
        self.cores = self.random.choice((1, 2, 2, 3))
        self.workers = self.random.choice((1, 2))
        self.train = self.random.choice((0, 3, 6, 9))
        self.compact, self.clean = self.random.choice((3, 8, 100)), self.random.choice((2, 50))
        self.retries = self.random.choice((0, 2))
        self.cluster = Cluster(self.world, self.cores)
        self.ledger: dict[str, dict[int, list[Any]]] = {}
        self.trouble: list[str] = []
        self.drivers: list[Process] = []
        self.problems: list[str] = []
        self.rival: float | None = None
        """Set by a fault: a second driver is to start."""
        self.starts = 0
        count = self.random.choice((1, 1, 2, 3, 5, 8)) if faults is None else faults
        if count:
            self.disk.locks = self.random.random() < 0.6
            for _ in range(count):
                name = self.random.choice(KINDS)
                point = 1 + self.random.randrange(int(1.6 * app.points) + 1)
                self.world.faults[point] = lambda what, name=name: self.strike(name, what)

    # --- faults ----------------------------------------------------------------------------------------

    def strike(self, name: str, what: str) -> None:
        """A fault, at the point at which the world is."""
        current = self.world.current
        assert current is not None
        self.world.struck.append(f"{name} at {self.world.me}: {what}")
        self.world.note(f"*** {name}")
        if name == "kill driver":
            self._driver(current.process).die()
        elif name == "kill here":
            current.process.die()
        elif name == "kill worker":
            self.cluster.kill_one()
        elif name == "power":
            for process in {id(t.process): t.process for t in self.world.threads}.values():
                process.die()
            self.disk.lose_power(self.random)
            self.world.note("no power")
        elif name in ("fails before", "fails after", "fails half"):
            self.disk.fails = {"before": "before", "after": "after", "half": "torn"}[name.split()[1]]
        elif name == "clock":
            self._driver(current.process).clock += self.random.choice((-3600.0, -0.01, 0.01, 3600.0))
        elif name == "pause":
            process = self._driver(current.process) if self.random.random() < 0.7 else current.process
            process.paused = True
            self.rival = self.world.now
        elif name == "rival":
            self.rival = self.world.now
        elif name == "lost answers":
            self.cluster.lost = 0.3
        elif name == "receiver":
            self.trouble += [
                self.random.choice(("before", "after")) for _ in range(self.random.choice((1, 4)))
            ]

    def _driver(self, here: Process) -> Process:
        alive = [driver for driver in self.drivers if driver.alive and driver.threads]
        return here if here in alive or not alive else self.random.choice(alive)

    # --- drivers ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start the application until it has come to its end, and once more: what is left then stays."""
        with nullcontext() if _inside[-1:] else edges(), self._standins(), entered(self.world, self.disk):
            try:
                while not self._once():
                    pass
                self._calm()
                self.world.now += DAY
                if not self._once():
                    raise Wrong(f"it had come to its end, and then: {self.problems[-1:]}")
            finally:
                self.world.end()

    def _standins(self) -> Any:
        _ledgers.append(self.ledger)
        _troubles.append(self.trouble)
        return _Standins(self)

    def _once(self) -> bool:
        """One run, or several that fight; whether one came to its end with all queries well."""
        self.starts += 1
        if self.starts > RESTARTS:
            raise Wrong(f"it does not come to its end: {self.problems[-3:]}")
        if self.starts > RESTARTS // 2:  # enough is enough
            self._calm()
        ended: list[bool] = []
        racing = [self._driver_process(ended)]

        def over() -> bool:
            if self.rival is not None:
                self.rival = None
                if len(racing) < 3:
                    racing.append(self._driver_process(ended))
            return all(thread.done for thread in racing)

        self.world.run(over)
        return bool(ended) and ended[-1]

    def _calm(self) -> None:
        """No more faults."""
        self.world.faults.clear()
        self.cluster.lost = 0.0
        self.trouble.clear()
        self.rival = None

    def _driver_process(self, ended: list[bool]) -> Thread:
        process = self.world.process("driver")
        self.drivers = [d for d in self.drivers if d.alive] + [process]
        return Thread(process, lambda: self._drive(process, ended), "main")

    def _drive(self, process: Process, ended: list[bool]) -> None:
        engine = _Spark(checkpoint=CHECKPOINT, buckets=BUCKETS, workers=self.workers, retries=self.retries)
        engine.simulation = self
        policy = Trains(self.train, self.seed * 1000 + self.starts)
        try:
            report = engine.run(self.app.network, policy, until="drained")
        except Died:
            raise
        except Exception as error:
            if not isinstance(error, (HeadgateError, OSError)):
                self.world.wrong = f"the driver ends with {type(error).__name__}: {error}"
            self.problems.append(str(error))
            self.world.note(f"ends with: {error}")
        else:
            errors = [str(query.error) for query in report.queries.values() if query.error is not None]
            self.problems += errors
            self.world.note(f"ended {errors}")
            ended.append(not errors)
        finally:
            if process.alive:
                process.die()

    # --- what must hold ----------------------------------------------------------------------------------

    def output(self) -> dict[str, list[Any]]:
        """What each sink has got, in order."""
        found: dict[str, list[Any]] = {}
        for query, steps in self.ledger.items():
            found[query] = [row for number in sorted(steps) for row in steps[number]]
        folder = self.disk.find(OUT)
        for query in sorted(folder.names):
            parts = folder.names[query].names
            found[query] = [
                row
                for name in sorted(parts)
                if not name.startswith(".")
                for row in pa.ipc.open_stream(bytes(parts[name].data)).read_all().to_pylist()
            ]
        return found

    def states(self) -> dict[str, Any]:
        """Of every box with state, what its files say; shards count their rows each for itself."""
        found = {}
        with nullcontext() if _inside[-1:] else edges(), entered(self.world, self.disk):
            position, _, _ = Log(open_storage(CHECKPOINT)).recover(self.app.nodes, self.app.network.name)
            for node in self.app.nodes.boxes:
                if node.stateful:
                    parts = position.nodes[node.key].state
                    state, _ = take(
                        open_storage(CHECKPOINT), node.key, node.operator, parts, (0, BUCKETS, BUCKETS)
                    )
                    rows = state.snapshot()
                    rows = rows.drop_columns(
                        [n for n in rows.column_names if n == "_sequence" or "arrival" in n]
                    )
                    found[node.name] = sorted(map(repr, rows.to_pylist()))
            self.files = position.files()
        return found

    def check(self) -> None:
        """Raise ``Wrong`` if it is not as if nothing had happened."""
        output = self.output()
        for query, wanted in self.app.expected.items():
            got = output.get(query, [])
            if got != wanted:
                raise Wrong(f"query '{query}' wrote {_difference(wanted, got)}")
        states = self.states()
        for name, wanted in self.app.states.items():
            if states[name] != wanted:
                raise Wrong(f"the state of '{name}' has {_difference(wanted, states[name])}")
        left = [file[len(ROOT) + 1 :] for file in self.disk.files() if self._is_left(file)]
        if left:
            raise Wrong(f"left behind: {', '.join(left)}")

    def _is_left(self, file: str) -> bool:
        """Whether it is a file that nothing names."""
        folder, name = os.path.split(file)
        kind = os.path.basename(folder)
        if name.startswith("."):
            return name != ".name"
        if kind in ("states", "queues", "staged"):
            return f"{kind}/{name}" not in self.files
        if kind in ("log", "snapshots"):
            return not name.endswith(".json")
        return kind == "slots" and not name.replace("-", "").isdigit()


def _difference(wanted: Sequence[Any], got: Sequence[Any]) -> str:
    lost = [row for row in wanted if row not in got]
    strange = [row for row in got if row not in wanted]
    return f"{len(got)} rows, not {len(wanted)}; lost {lost[:3]}, not wanted {strange[:3]}" + (
        "" if lost or strange or len(got) != len(wanted) else "; in another order"
    )


def always(value: Any) -> Callable[..., Any]:
    """A function that ignores what it is given."""

    def given(*_: Any, **__: Any) -> Any:
        return value

    return given


class _Standins:
    """What belongs to one run, in place of what is made anew for each."""

    def __init__(self, simulation: Simulation) -> None:
        app, cluster = simulation.app, simulation.cluster
        self._patches = [
            mock.patch.object(spark, "Nodes", always(app.nodes)),
            mock.patch.object(spark, "pickled", always(app.data)),
            mock.patch.object(spark.sessions, "present_cores", always(None)),
            mock.patch.object(holders, "ask", cluster.ask),
            mock.patch.object(log, "COMPACT_EVERY", simulation.compact),
            mock.patch.object(spark, "CLEAN_EVERY", simulation.clean),
        ]

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *_: Any) -> None:
        for patch in self._patches:
            patch.stop()
        _ledgers.pop()
        _troubles.pop()


_inside: list[bool] = []


class many:  # noqa: N801, used as a function
    """Around many runs: the edges are put in place once."""

    def __enter__(self) -> None:
        self._edges = edges()
        self._edges.__enter__()
        _inside.append(True)

    def __exit__(self, *error: Any) -> None:
        _inside.pop()
        self._edges.__exit__(*error)


KINDS = (
    "kill driver", "kill here", "kill worker", "power", "power", "fails before", "fails after", "fails half",
    "clock", "pause", "pause", "rival", "lost answers", "receiver",
)  # fmt: skip


def simulate(seed: int, history: list[str] | None = None) -> Simulation:
    """The run of a seed; raises ``Wrong`` if something is lost, comes twice, or stays behind."""
    app = application(tuple(APPS)[seed % len(APPS)])
    made = Simulation(app, seed)
    made.world.history = history
    try:
        made.run()
        made.check()
    except Wrong as error:
        raise Wrong(f"seed {seed}: {error}") from error
    except Exception as error:
        raise Wrong(f"seed {seed}: {type(error).__name__}: {error}") from error
    return made
