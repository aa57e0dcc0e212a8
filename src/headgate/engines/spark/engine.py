"""``Spark``: the scheduler in the driver, steps as Spark jobs (Aurora's superboxes as fused jobs)."""

from __future__ import annotations

import copy
import gc
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeGuard

from headgate.checkpoint.added_queries import beginning
from headgate.checkpoint.graph import Node, Nodes
from headgate.checkpoint.identity import identity
from headgate.checkpoint.log import FORMAT, Log
from headgate.checkpoint.memory import merged
from headgate.checkpoint.names import safe_name
from headgate.checkpoint.offsets import Extent
from headgate.checkpoint.opening import open_storage
from headgate.checkpoint.owner import claim
from headgate.checkpoint.places import local_path, store_url
from headgate.checkpoint.savepoint import begin_from
from headgate.checkpoint.storage import Storage
from headgate.checkpoint.upgrade import Upgrade
from headgate.checkpoint.verdicts import Choices
from headgate.connectors.folder import publish
from headgate.connectors.source import source_error
from headgate.control.line import SUCCEEDED, Line
from headgate.engines.base import Engine, Progress, Until, deadline
from headgate.engines.realtime import RealtimeRun, terminated_like_interrupted
from headgate.engines.spark import session as sessions
from headgate.engines.spark import sinks
from headgate.engines.spark.commands import handlers
from headgate.engines.spark.connectors import connectors, way_in, way_out
from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.given import Given
from headgate.engines.spark.jobs import Jobs, warm_up
from headgate.engines.spark.observing import observe
from headgate.engines.spark.requests import Requests
from headgate.engines.spark.shipping import pickled, ship_package
from headgate.engines.spark.sinks import Claim, wrapped
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.stimuli import QueryRestarted, QueryStopped
from headgate.engines.spark.task import pipeline_name
from headgate.engines.spark.workers import Workers
from headgate.errors import HeadgateError, PipelineError, RunError, SourceError
from headgate.graph.network import Network, Output, Request
from headgate.runtime.added_queries import check_new, other_queries
from headgate.runtime.change import Change
from headgate.runtime.limits import check_workers
from headgate.runtime.observing import Observation
from headgate.runtime.report import Report
from headgate.runtime.stimuli import Asked
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

LEAST_BUCKETS, BUCKETS_PER_CORE = 64, 4
"""Buckets of keys, where their number is not given."""
COUNT_SECONDS = 1.0
"""How often the cores of the cluster are counted."""
CLEAN_EVERY = 50
"""Steps between looks for files that nothing refers to."""
_OF_STEP = re.compile(r"(\d{9})-(?:(?P<fence>\d+)\.)?.+\.arrow$")
_SPOOLED = re.compile(r".+-\d{6}-(?:f(?P<fence>\d+)-)?.+\.arrow$")
_PIPELINE = re.compile(r"(?:(?P<fence>\d+)-)?[0-9a-f]{32}(\.[0-9a-f]{32})?$")
_SLOT = re.compile(r"(?:(?P<fence>\d+)-)?\d+(\.[0-9a-f]{32})?$")
"""Names that tasks and drivers give, with the number of the owner: of what else is there, nothing is removed,
and nothing of a later owner's."""


class Spark(Engine):
    """Runs a network on a Spark session: ``local[*]`` by default, a cluster, or Spark Connect.

    ``checkpoint`` is a folder that the driver and all executors reach, or a place in a store
    (``s3://bucket/name``; ``storage_options`` says what the environment does not).  Without one the run
    leaves nothing behind and cannot be continued.  ``buckets``: into how many parts keys are divided, at
    least as many as tasks share a keyed box; by default four for each core, and never fewer than 64.
    ``retries``: how often a step or a sink that fails is tried again before the query at fault is stopped.
    ``options`` are settings of a session that is made here.  ``take_over``: take the checkpoint also from a
    run that is alive, which can commit nothing from then on.

    ``reset`` and ``replay`` name queries that forget their states in the checkpoint: a reset one begins anew
    where it was, a replayed one with the earliest row, and its results come again.  ``savepoint``: a folder
    that ``headgate savepoint`` wrote; a new checkpoint begins there, with an identity of its own.
    """

    name = "spark"

    def __init__(
        self,
        session: Any = None,
        master: str = "local[*]",
        checkpoint: str | os.PathLike[str] | None = None,
        buckets: int | None = None,
        workers: int | None = None,
        *,
        retries: int = 2,
        options: dict[str, str] | None = None,
        take_over: bool = False,
        storage_options: dict[str, str] | None = None,
        reset: Collection[str] = (),
        replay: Collection[str] = (),
        savepoint: str | os.PathLike[str] | None = None,
    ) -> None:
        if workers is not None:
            check_workers(workers, "Spark")
        if buckets is not None and (not isinstance(buckets, int) or buckets < 1):
            raise PipelineError(f"Spark(buckets={buckets!r}): it must be a whole number of at least 1.")
        if not isinstance(retries, int) or retries < 0:
            raise PipelineError(f"Spark(retries={retries!r}): it must be a whole number, 0 or more.")
        if checkpoint is not None:
            in_store = store_url(checkpoint, PipelineError) is not None
            if not in_store:
                local_path(checkpoint, "checkpoint", PipelineError)
        self.session = session
        self.master = master
        self.checkpoint = checkpoint
        self.buckets = buckets
        self.workers = workers
        self.retries = retries
        self.take_over = take_over
        self.storage_options = storage_options or {}
        self.options = options or {}
        if savepoint is not None and checkpoint is None:
            raise PipelineError("Spark(savepoint=…): give the new run a checkpoint= of its own, too.")
        self.savepoint = savepoint
        self.choices = Choices(_names(reset, "reset"), _names(replay, "replay"))

    def run(
        self,
        network: Network,
        policy: Policy,
        *,
        workers: int | None = None,
        until: Until = "drained",
        progress: Progress | None = None,
        seed: int = 0,
        line: Line | None = None,
    ) -> Report:
        limit = deadline(until)
        kept = self.checkpoint is not None
        folder = os.fspath(self.checkpoint) if self.checkpoint else tempfile.mkdtemp(prefix="headgate-")
        place = open_storage(folder, durable=kept, options=self.storage_options)
        place.prepare()
        held = claim(place, network.name, take_over=self.take_over) if kept else None
        try:
            if self.savepoint is not None:
                begin_from(open_storage(self.savepoint, options=self.storage_options), place)
            if held is not None:
                place.sweep()
                Log(place).take(held)
            session, cores, local = self._ready(network)
            asked = workers or self.workers or cores
            # Tasks on this machine hand each other packets through files; on a cluster Spark carries them.
            with tempfile.TemporaryDirectory(prefix="headgate-") if local else nullcontext("") as exchange:
                ground = _Ground(session, place, cores, exchange, secrets.token_bytes(32))
                run = _Run(self, network, policy, ground, asked, until, limit, progress, seed)
                return _finished(run, line)
        finally:
            if held is not None:
                held.release()
            if not kept:
                place.remove_all()

    def _ready(self, network: Network) -> tuple[Any, int, bool]:
        """A session whose workers have started, how many tasks run at once, and whether they run here."""
        session = self.session or sessions.open_session(
            self.master, network.name, self.options, lambda: connectors(network)
        )
        local = sessions.is_local(session)
        if not local:
            ship_package(session)
        cores = sessions.parallelism(session)
        warm_up(session, cores)
        return session, cores, local

    def _jobs(self, session: Any, place: Storage, app: str, exchange: str) -> Jobs:
        """What runs work orders on a session."""
        return Jobs(session, place, app, exchange)


def _finished(run: _Run, line: Line | None) -> Report:
    """Run until no other run goes on from here, with other queries."""
    with terminated_like_interrupted():
        while True:
            report = run.run(line)
            if run.successor is None:
                return report
            run = run.successor()


@contextmanager
def _own_ground(ground: _Ground) -> Iterator[_Ground]:
    """What a request's run stands on: the same session, and folders that are gone when it has ended."""
    place = ground.storage.scratch()
    place.prepare()
    local = tempfile.TemporaryDirectory(prefix="headgate-") if ground.exchange else nullcontext("")
    try:
        with local as exchange:
            yield replace(ground, storage=place, exchange=exchange)
    finally:
        place.remove_all()


@dataclass(frozen=True)
class _Ground:
    """What the runs of one call stand on."""

    session: Any
    storage: Storage
    cores: int
    exchange: str
    secret: bytes


class _Run(RealtimeRun):
    """One run: a feeder that admits, workers that run steps, and the calling thread, which keeps time."""

    core: SparkCore
    workers: Workers
    begin: float
    """When the application's run began, seconds since the epoch."""

    def __init__(
        self,
        engine: Spark,
        network: Network,
        policy: Policy,
        ground: _Ground,
        requested: int,
        until: Until,
        limit: float | None,
        progress: Progress | None,
        seed: int,
        before: _Run | None = None,
        *,
        beside: bool = False,
    ) -> None:
        """``before``: the run that this one goes on from.  ``beside``: it is a request's."""
        super().__init__(threading.RLock() if before is None else before.lock, limit, progress)
        session, place, cores = ground.session, ground.storage, ground.cores
        self.engine, self.storage, self._session = engine, place, session
        self.retries = engine.retries
        self.successor: Callable[[], _Run] | None = None
        """Makes the run that goes on where this one stops, with other queries."""

        def succeed(network: Network) -> _Run:
            policy, asked = self.core.driver.policy, self.core.driver.requested
            given = (replace(ground, cores=self._cores), asked, until, limit, progress, seed)
            return _Run(engine, network, policy, *given, before=self)

        @contextmanager
        def request(network: Network) -> Iterator[_Run]:
            with _own_ground(ground) as own:
                given = (own, self.core.driver.requested, "drained", None, None, seed)
                yield _Run(engine, network, _copied(self._fresh), *given, beside=True)

        self._succeed, self._request, self._beside = succeed, request, beside
        self._fresh: Policy = _copied(policy) if before is None else before._fresh
        """The policy in force as it was before it began: each request gets a copy."""
        self.requests: Requests = Requests(self.lock) if before is None else before.requests
        self.log = Log(place)
        upgrade = Upgrade(network, self.log, engine.choices if before is None else None)
        upgrade.refuse()
        _rename_history(place, upgrade.record.get("renamed", {}).get("queries", {}))
        self.network = network = upgrade.network
        self.nodes, self.position, self.intents = upgrade.nodes, upgrade.position, upgrade.intents
        start = upgrade.start
        workers = policy.workers(len(network.boxes), requested)
        self.pipeline = self._ship()
        self.jobs = engine._jobs(session, place, network.name, ground.exchange)
        self._cores = cores
        self._counted = time.monotonic()
        self.buckets = engine.buckets or max(LEAST_BUCKETS, BUCKETS_PER_CORE * cores)
        if before is None and any(source.origin.live for source in network.sources):
            self.jobs.rehearse(self.pipeline, workers, cores)
        for number, files in list(self.log.unpublished.items()):
            publish(files, durable=place.durable)
            self.log.published(number)
        self.resumed = set() if start is None else set(start["pipeline"]["queries"])
        if start is not None and "format" not in start:
            # Version 0.3 did not log which folders its queries used: those of a run that began are theirs.
            for query in self.resumed:
                self.position.claims.setdefault(query, dict(sinks.USED_BEFORE))
        self.given: Given = Given(self.nodes, self.position, None if before is None else before.given)
        self.begin = time.time() if before is None else before.begin
        self.position.clock = self.position.clock or self.begin
        offsets = self.position.offsets
        if not offsets.ended:
            # Where a source had failed, the others' queries may have passed the end, and its serial.
            cursors = [own.cursor for own in self.position.nodes.values()]
            offsets.next_serial = max([offsets.next_serial, *cursors])
        self.opened = False
        self.open_sinks: set[str] = set()
        """Queries whose sinks have been opened."""
        self.sources: list[OffsetSource] = [
            way_in(s, place, session, network.dead_letter is not None) for s in network.sources
        ]
        for number, own_source in enumerate(self.sources):
            own_source.place = number
        for source, own in zip(self.sources, self.position.offsets.sources, strict=True):
            # The position is what the log says, the source runs ahead of it.
            source.resume(copy.deepcopy(self.position.sources.get(source.source.name)), own.rows)
        self.pending: list[tuple[int, Extent]] = []
        """Admitted and not yet logged."""
        self.broken: set[int] = set()
        """Sources that have failed."""
        self.memories: dict[str, Any] = {}
        """What sources with a small memory remember of what was admitted since the last record."""
        self.learned: dict[str, Any] = {}
        """What the others have learned with it; either may have looked further meanwhile."""
        self.start_record = {
            "kind": "start",
            "format": FORMAT,
            "app": network.name,
            "clock": self.position.clock,
            "pipeline": self.nodes.describe(),
            "buckets": self.buckets,
            "next": offsets.next_serial,
            # Whoever starts the application again has seen to what had failed.
            "failed": dict.fromkeys(self.position.failed) if before is None else {},
            **upgrade.record,
        }
        if before is None:
            self.position.failed.clear()
        own_name = identity(place)
        self.outlets = {
            node.place: way_out(node.output, place, session, engine.retries, network.name, own_name)
            for node in self.nodes.outlets
            if node.output is not None
        }
        for way in self.outlets.values():
            way.fence = place.fence
        self.deliveries = {number: way.delivery() for number, way in self.outlets.items()}
        self.workers = Workers(self, workers, policy.one_semaphore)
        self.core = SparkCore(
            self.nodes,
            self.position,
            policy,
            start=self.begin,
            workers=workers,
            cores=cores,
            drain=until == "drained",
            seed=seed,
            storage=place,
            pipeline=self.pipeline,
            framed=frozenset(p for p, s in enumerate(self.sources) if s.frames),
            buckets=self.buckets,
            exchange=ground.exchange,
            secret=ground.secret,
            timer=time.perf_counter,
            before=None if before is None else before.core,
        )
        self.core.driver.requested = requested
        self.core.driver.problems += upgrade.lost + (upgrade.gone if before is None else [])
        self._chosen = partial(_chosen, engine, workers, self.buckets, bool(ground.exchange))
        self.core.chosen = self._chosen(cores)
        self.core.requests = self.requests
        self.requests.notify = self.check_over

    def _ship(self) -> str:
        """Leave the pipeline where tasks find it, once, by its hash."""
        data = pickled(self.nodes)
        name = f"{self.storage.fence}-{pipeline_name(data)}"
        place = f"pipelines/{name}"
        if not self.storage.exists(place) or self.storage.read(place) != data:  # absent, or damaged
            self.storage.replace(place, data)
        return name

    def now(self) -> float:
        return time.time() - self.begin

    # --- the run ------------------------------------------------------------------------------------

    def run(self, line: Line | None) -> Report:
        feeder = threading.Thread(target=self.guard, args=(self._feed,), name="headgate-feeder", daemon=True)
        if not self._beside:
            gc.freeze()  # what is there stays: the collector need not look through it between steps
        try:
            if line is not None:
                line.begin(self.core)
            with self.lock:
                self.obey(self.core.start())
            self._open()
            if not self.core.done:
                self.workers.repeat(self.intents)
                feeder.start()
                self.workers.start()
                commands = nullcontext() if self._beside else self.control(self.network.name, handlers(self))
                with self.on(line), commands:
                    self.wait()
        except KeyboardInterrupt:
            pass  # a run that is stopped by hand still reports what it did
        except BaseException as error:
            self.crash = self.crash or error
        finally:
            self.stop()
            if self.successor is None:
                self.requests.stop()
            self.workers.join()
            if feeder.ident is not None:
                feeder.join()
            if not self._beside:
                gc.unfreeze()
            seconds = self.now()
            self.guard(self._close)
        if self.crash is not None:
            raise self.crash
        return self.report(seconds)

    def aside(self) -> None:
        self.jobs.keep_warm(self._cores)
        self._count_cores()

    def _count_cores(self) -> None:
        """Executors come and go: steps are cut for those that are there."""
        if time.monotonic() < self._counted + COUNT_SECONDS:
            return
        self._counted = time.monotonic()
        cores = sessions.present_cores(self._session)
        if cores is not None and cores != self._cores:
            self._cores = cores
            with self.lock:
                self.core.planner.resize(cores)
                self.core.chosen = self._chosen(cores)

    # --- queries that come and go -------------------------------------------------------------------

    @property
    def succeeded(self) -> bool:
        return self.successor is not None and self.crash is None

    def carry_out(self, change: Change, outputs: Sequence[Output]) -> None:
        change.check(change.chosen or self.core.driver.policy, [node.name for node in self.nodes.outlets])
        if outputs and outputs[0].request is not None:
            check_new(self.network, outputs)
            self.requests.begin(outputs, self._request)
            return
        self._change_queries(change, outputs)
        if change.chosen is not None:
            self._fresh = _copied(change.chosen)
        if change.qos:
            reports = {n.name: own for n in self.nodes.outlets if (own := self.core.live[n.place].report)}
            change.set_goals(self.network, reports, self.core.catalog)
        self.tell(Asked(change, outputs))

    def cancel(self, request: Request) -> None:
        self.requests.cancel(request)

    def _change_queries(self, change: Change, outputs: Sequence[Output]) -> None:
        """Lock held: let the run come to its end, and another go on from its last commit.

        What is under way is committed first.  So queries join and leave as when an application is started
        again, but for the session, the workers' caches and what was measured, which stay.
        """
        if not outputs and not change.remove:
            return
        if self.successor is not None:
            raise PipelineError(SUCCEEDED)
        if self.network.dead_letter is not None:
            raise PipelineError(
                "With a dead-letter output, queries cannot come and go while it runs on Spark; stop it, and "
                "start it again with the same checkpoint and other queries."
            )
        for box, node in zip(self.network.boxes, self.nodes.boxes, strict=True):
            box.key = node.key  # two that do the same are told apart by their order, which may change now
        network = other_queries(self.network, outputs, change.remove)
        for output in outputs:
            beginning(output, self.position, self.storage)  # which refuses what cannot be
        Nodes(network)
        self.successor = lambda: self._succeed(network)
        self.over.set()
        self.alarm.notify_all()

    def _open(self) -> None:
        """Log the start, which also claims the checkpoint; open sinks and finite sources."""
        if not any(source.source.origin.live for source in self.sources) and not self.position.offsets.ended:
            self._admit_finite(time.time())
        with self.lock:
            self.log.append(self.start_record)
            self.position.buckets = self.buckets
            self.position.forget_claims([node.name for node in self.nodes.outlets])
            self.opened = True
        self._clean()
        self._open_sinks()
        for place, source in enumerate(self.sources):
            why = self.position.unread.get(source.source.name)
            if why is not None:
                again = " That was when this checkpoint began; start with a new one." if self.resumed else ""
                self.fail_source(place, SourceError(why + again))
        with self.lock:
            self.core.cursors.settle()

    def _open_sinks(self) -> None:
        """Open all sinks; what they claim is in the log before anything is written to them.

        Not in the start record: a sink that refuses must be asked again at the next start.
        """
        claims: dict[str, Claim] = {}
        for node in self.nodes.outlets:
            try:
                claims[node.name] = self._open_sink(node)
            except Exception as error:
                self.stop_query(node.name, wrapped(node.name, error))
        with self.lock:
            self._log_claims(claims)

    def _open_sink(self, node: Node) -> Claim:
        claim = self.outlets[node.place].open(self.position.claims.get(node.name, {}))
        self.open_sinks.add(node.name)
        return claim

    def _log_claims(self, claims: dict[str, Claim]) -> None:
        """Lock held: remember what is not in the log yet."""
        new = {
            query: claim for query, claim in claims.items() if claim != self.position.claims.get(query, {})
        }
        if new:
            self.log_record({"kind": "change", "claims": new})
            self.position.claims |= new

    def _admit_finite(self, now: float) -> None:
        """Finite sources take turns; how many rows each has is known from the start."""
        extents: list[list[Extent]] = []
        for source in self.sources:
            own: list[Extent] = []
            try:
                while not source.ended:
                    own += source.poll(now, self.position.clock)
            except RunError:
                raise  # the checkpoint's fault
            except Exception as error:
                # The others take their turns without it, so it could not join them later.
                own, why = [], str(source_error(source.source.name, error))
                self.position.unread[source.source.name] = why
            extents.append(own)
        self.position.offsets.take_turns(extents)
        self.start_record["offsets"] = self.position.offsets.to_data()
        self.start_record["sources"] = {s.source.name: s.memory for s in self.sources}
        self.start_record["unread"] = self.position.unread
        self.start_record["next"] = self.position.offsets.next_serial

    def check_over(self) -> None:
        """Lock held: notice that nothing is left to do."""
        if self.core.done:
            self.over.set()
            self.alarm.notify_all()

    def report(self, seconds: float) -> Report:
        report = self.core.report(seconds, *self.given.rows(self.position))
        waits = self._waits()
        for output in self.network.outputs:
            report.queries[output.name].waits_for = waits.get(output.name)
        report.requests = dict(self.requests.ended)
        return report

    def observe(self, calls_seen: int) -> Observation:
        with self.lock:
            return observe(
                self.core,
                self.sources,
                *self.given.rows(self.position),
                self._waits(),
                self.now(),
                calls_seen,
            )

    def _waits(self) -> dict[str, str]:
        """By query that waits for a source which does not answer: that source, and since when."""
        silent = {s.source: found for s in self.sources if not s.ended and (found := s.silent) is not None}
        waits = {}
        for query, sources in self.network.sources_by_query.items() if silent else ():
            for source in sources & silent.keys():
                waits[query] = _waits_for(source.name, *silent[source])
        return waits

    def _close(self) -> None:
        with self.lock:
            if self.crash is None and self.opened:
                cursors = {
                    key: {"cursor": own.cursor} for key, own in self.position.nodes.items() if own.cursor
                }
                self.log_record({"kind": "step", "nodes": cursors})
                if self.successor is not None:
                    self.log.compact(self.position, self.start_record, self.network.name)
        for source in self.sources:
            source.close()
        for node in self.nodes.outlets:
            live = self.core.live[node.place]
            assert live.report is not None
            rows = self.position.nodes[node.key].rows_out + live.report.tuples_out
            stopped = self.crash is not None or not self.core.cursors.drain or self.successor is not None
            failed = live.report.error is not None or stopped
            try:
                self.outlets[node.place].close(failed, rows)
            except Exception as error:
                if live.report.error is None:
                    live.report.error = wrapped(node.name, error)

    # --- the log ------------------------------------------------------------------------------------

    def log_record(self, record: dict[str, Any]) -> int:
        """Lock held: make a record durable, with what was admitted since the last one; its number."""
        if self.pending:
            record["admitted"] = [[place, [e.unit, e.first, e.rows, e.arrival]] for place, e in self.pending]
            record["sources"], record["learned"] = self.memories, self.learned
        offsets = self.position.offsets
        if any(s.ended for s in self.sources):
            record["ended"] = {
                str(place): own.ended_at
                for place, own in enumerate(offsets.sources)
                if own.ended_at is not None
            }
            record["all_ended"] = offsets.ended and not offsets.broken
        number = self.log.append(record)
        if self.pending:
            self.position.sources |= self.memories
            self.position.learn(self.learned)
            self.pending, self.memories, self.learned = [], {}, {}
        return number

    def committed(self, record: dict[str, Any]) -> None:
        """Lock held: the position takes in what the log now says."""
        ended = self.position.offsets.ended
        known = {"admitted": (), "sources": {}, "learned": {}, "all_ended": ended}
        garbage = self.position.apply({**record, **known})
        self.storage.discard(garbage)
        if self.log.due:
            self._forget()
            self.log.compact(self.position, self.start_record, self.network.name)
        if self.core.steps_done % CLEAN_EVERY == CLEAN_EVERY - 1:
            self._forget()
            self._clean()

    def _forget(self) -> None:
        """Lock held: drop extents that all nodes have passed.  It looks at all, so not at every step."""
        low = min((live.taken for live in self.core.live), default=0)
        low = min([low, *(own.cursor for own in self.position.nodes.values())])
        for own in self.position.offsets.sources:
            own.forget(low)

    def _clean(self) -> None:
        """Remove files that nothing refers to and no step under way can be writing, nor a later run's."""
        for outlet in self.outlets.values():
            outlet.prune(time.time())
        used = self.position.files()
        oldest = min(self.core.under_way, default=self.position.step + 1)
        gone: list[str] = []
        fence = self.storage.fence
        for folder in ("states", "queues", "staged"):
            for name in self.storage.names(folder):
                made = _OF_STEP.match(name)
                past = _ours(made, fence) and (int(made["fence"] or 0), int(made[1])) < (fence, oldest)
                if past and f"{folder}/{name}" not in used:
                    gone.append(f"{folder}/{name}")
        spooled = {e.unit.partition(":")[2] for own in self.position.offsets.sources for e in own.extents}
        spooled |= {name for source in self.sources for name in source.fresh}
        for name in self.storage.names("spool"):
            if _ours(_SPOOLED.match(name), fence) and f"spool/{name}" not in spooled and not self.pending:
                gone.append(f"spool/{name}")
        for name in self.storage.names("pipelines"):
            if name != self.pipeline and _ours(_PIPELINE.match(name), fence):
                gone.append(f"pipelines/{name}")
        for name in self.storage.names("slots"):
            if _ours(_SLOT.match(name), fence - 1):
                gone.append(f"slots/{name}")
        self.storage.discard(gone)

    def stop_query(self, query: str, error: HeadgateError) -> None:
        """Stop a query with its error, and remember that."""
        with self.lock:
            self.tell(QueryStopped(query, error))
            self.position.failed[query] = str(error)
            self.log_record({"kind": "change", "failed": {query: str(error)}})
            self.workers.admitted()  # what waited for its boxes can go on
            self.check_over()

    def restart_query(self, query: str) -> None:
        """Lock held: let a stopped query go on from its last commit; its sink or a source may refuse."""
        node = next(node for node in self.nodes.outlets if node.name == query)
        self._reopen_sources(node)
        if query not in self.open_sinks:
            try:
                claim = self._open_sink(node)
            except Exception as error:
                raise wrapped(query, error) from error
            self._log_claims({query: claim})
        self.tell(QueryRestarted(query))
        self.log_record({"kind": "change", "failed": {query: None}})
        self.workers.repeat_soon(query)
        self.workers.admitted()

    def _reopen_sources(self, node: Node) -> None:
        """Lock held: read sources of a query that have failed once more, from where they were."""
        assert node.output is not None
        wanted = self.network.sources_of(node.output.port)
        offsets = self.position.offsets
        for place in [p for p in sorted(self.broken) if self.network.sources[p] in wanted]:
            source, own = self.network.sources[place], offsets.sources[place]
            if own.turns is not None or offsets.ended:
                raise PipelineError(
                    f"Query '{node.name}' cannot go on in this run: source '{source.name}' has failed, and "
                    "no more is read of any source. Start the application again."
                )
            fresh = way_in(source, self.storage, self._session, self.network.dead_letter is not None)
            fresh.place = place
            memory = copy.deepcopy(self.memories.get(source.name, self.position.sources.get(source.name)))
            if source.name in self.learned:
                memory = merged(memory, copy.deepcopy(self.learned[source.name]))
            fresh.resume(memory, own.rows)
            self.sources[place].close()
            self.sources[place] = fresh
            self.broken.discard(place)
        offsets.broken = bool(self.broken)
        self.alarm.notify_all()  # the feeder may sleep

    # --- feeding ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Admit what arrives.  Nothing is copied, so there is no queue that could be full."""
        offsets = self.position.offsets
        last = [time.time()] * len(self.sources)
        while not offsets.ended:
            now = time.time()
            found = [self._poll(place, now) for place in range(len(self.sources))]
            with self.lock:
                for place, extents in enumerate(found):
                    source, own = self.sources[place], offsets.sources[place]
                    for extent in extents:
                        source.lag += max(now - (extent.arrival or now), 0.0) * extent.rows
                        offsets.admit(place, extent)
                        self.pending.append((place, extent))
                    if source.lost:
                        self.core.driver.problems.append(source.lost)
                        source.lost = ""
                    if extents:
                        self._remember(source)
                    if source.ended and own.ended_at is None and place not in self.broken:
                        own.ended_at = offsets.next_serial
                    idle_after = source.source.idle_after
                    if extents:
                        last[place] = now
                        self.core.planner.idle_sources.discard(place)
                    elif idle_after is not None and now - last[place] >= idle_after:
                        self.core.planner.idle_sources.add(place)
                if all(source.ended for source in self.sources):
                    offsets.ended = True
                    self.core.cursors.settle()
                if any(found) or offsets.ended:
                    self.workers.admitted()
                    self.check_over()
                if self.stopping:
                    return
                polls = [s.next_poll(now, self.position.clock) for s in self.sources if not s.ended]
                self.alarm.wait(max(0.002, min(polls, default=now) - time.time()))
                if self.stopping:
                    return
        with self.lock:
            self.workers.admitted()

    def _remember(self, source: OffsetSource) -> None:
        """Lock held: what a source must remember is in the record that admits what it has brought."""
        name, news = source.source.name, source.news()
        if news is None:
            self.memories[name] = copy.deepcopy(source.memory)
        else:
            self.learned[name] = merged(self.learned.get(name), news)

    def _poll(self, place: int, now: float) -> list[Extent]:
        source = self.sources[place]
        if source.ended:
            return []
        try:
            return source.poll(now, self.position.clock)
        except RunError:
            raise  # the checkpoint's fault
        except Exception as error:
            self.fail_source(place, source_error(source.source.name, error))
            return []

    def fail_source(self, place: int, error: HeadgateError) -> None:
        """A source that cannot be read stops the queries that need it."""
        self.sources[place].ended = True
        self.position.offsets.broken = self.position.offsets.sources[place].turns is None
        self.broken.add(place)
        source = self.network.sources[place]
        for output in self.network.outputs:
            if source in self.network.sources_of(output.port):
                self.stop_query(output.name, error)


def _rename_history(place: Storage, queries: dict[str, str]) -> None:
    """What queries have kept goes with them to their new names; a crash may come before or after."""
    for new, old in queries.items():
        if not place.names(f"history/{safe_name(old)}"):
            continue
        was, now = (place.folder(f"history/{safe_name(name)}", f"query '{new}'") for name in (old, new))
        if os.path.isdir(was) and not os.path.exists(now):
            os.rename(was, now)


def _names(queries: Collection[str], what: str) -> list[str]:
    if isinstance(queries, str):
        raise PipelineError(f"Spark({what}={queries!r}): give a list of queries, e.g. {what}=['{queries}'].")
    return list(queries)


def _ours(name: re.Match[str] | None, fence: int) -> TypeGuard[re.Match[str]]:
    """Whether this owner or one before it has given a name."""
    return name is not None and int(name["fence"] or 0) <= fence


def _copied(policy: Policy) -> Policy:
    """A policy that has not begun, once more; one that cannot be copied is replaced by the default."""
    try:
        return copy.deepcopy(policy)
    except Exception:
        return policies.get(policies.DEFAULT)


def _chosen(engine: Spark, workers: int, buckets: int, local: bool, cores: int) -> str:
    """One line on the sizes of a run."""
    sized = "given" if engine.buckets else f"{BUCKETS_PER_CORE} for each core, at least {LEAST_BUCKETS}"
    how = "files on this machine" if local else "Spark's shuffle"
    return (
        f"{cores} cores can run tasks at once: {workers} steps at a time, up to {cores} tasks on each level "
        f"of a step, {buckets} buckets of keys ({sized}); tasks exchange packets through {how}"
    )


def _waits_for(source: str, since: float, why: str) -> str:
    when = datetime.fromtimestamp(since, UTC).isoformat(" ", "seconds")
    return f"source '{source}' since {when}: {why}"
